"""The jobs that this worker holds, as its Redis side knows them: how far each one's log is, and what waits to be
logged."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

from shared.messages import TOKEN, Event, running_hash
from shared.queue import Delivery
from worker.sequence import Output

PROOF = 2  # tokens after which a suspect counts as harmless


class Job:
    """The writing end of one job's log."""

    def __init__(self, delivery: Delivery) -> None:
        last = delivery.log[-1] if delivery.log else None
        self.id = delivery.request.id
        self.epoch = delivery.epoch
        self.is_streamed = delivery.request.stream
        self.deadline = time.monotonic() + delivery.time_left
        self.seq = last.seq if last else 0  # entries in the log
        self.num_tokens = last.num_tokens if last else 0
        self.hash = last.hash if last else ""
        self.text = [event.text for event in delivery.log]
        self._num_tokens_at_start = self.num_tokens
        self._is_suspect = delivery.is_suspect
        self.has_readers = True  # until Redis says otherwise
        self.written_at = time.monotonic()
        self.is_cancelled = False
        self._unwritten: Event | None = None  # handed to Redis, not acknowledged
        self.pending_tokens: list[int] = []
        self.pending_text: list[str] = []
        self.last: Output | None = None  # the output that ends the job

    @property
    def is_suspect(self) -> bool:
        """Its last worker died, and it has not yet proved harmless."""
        return self._is_suspect and self.num_tokens - self._num_tokens_at_start < PROOF

    @property
    def num_outstanding(self) -> int:
        """Tokens that are not known to be in the log."""
        return len(self.pending_tokens) + (len(self._unwritten.token_ids) if self._unwritten else 0)

    def add(self, output: Output) -> None:
        """Take what the engine made, to be logged with the next event."""
        self.pending_tokens += output.token_ids
        self.pending_text.append(output.text)
        if output.is_last:
            self.last = output

    def take_event(self) -> Event | None:
        """The event to write next: one that Redis has not yet acknowledged, unchanged, or else all that is pending."""
        if self._unwritten is None and self.pending_tokens:
            self._unwritten = self._make_event()
        return self._unwritten

    def _make_event(self) -> Event:
        tokens, self.pending_tokens = self.pending_tokens, []
        text, self.pending_text = "".join(self.pending_text), []
        return Event(
            job_id=self.id,
            seq=self.seq + 1,
            epoch=self.epoch,
            type=TOKEN,
            token_ids=tuple(tokens),
            text=text,
            num_tokens=self.num_tokens + len(tokens),
            hash=running_hash(self.hash, tokens),
        )

    def written(self, event: Event, *, num_readers: int) -> None:
        """The event is in the log."""
        self._unwritten = None
        self.seq, self.num_tokens, self.hash = event.seq, event.num_tokens, event.hash
        self.text.append(event.text)
        self.has_readers = num_readers > 0
        self.written_at = time.monotonic()


class InFlight:
    """The worker's jobs by id. One thread only (the event loop's)."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._emptied = asyncio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def get(self, job_id: str, epoch: str | None = None) -> Job | None:
        """The job, if this worker holds it (in this attempt)."""
        job = self._jobs.get(job_id)
        return job if job and epoch in (None, job.epoch) else None

    def add(self, job: Job) -> None:
        self._jobs[job.id] = job

    def remove(self, job: Job) -> None:
        if self._jobs.get(job.id) is job:
            del self._jobs[job.id]
            if not self._jobs:
                self._emptied.set()

    async def wait_empty(self, timeout: float) -> None:
        """Wait at most `timeout` s until no job is left."""
        self._emptied.clear()
        if self._jobs:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._emptied.wait()

    @property
    def ids(self) -> list[str]:
        return list(self._jobs)

    @property
    def epochs(self) -> dict[str, str]:
        return {job.id: job.epoch for job in self._jobs.values()}

    @property
    def has_suspect(self) -> bool:
        """While there is one, no other job is taken: should it kill this worker, it takes no newcomer with it."""
        return any(job.is_suspect for job in self._jobs.values())
