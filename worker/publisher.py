"""Writes what the engine makes to Redis: one pipeline of `emit` and `finish` for all rows of a step. While it is under
way, new tokens gather and go out together in the next: the engine waits only when `max_pending_tokens` are outstanding.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from shared.messages import CANCELLED, EXPIRED, FAILED, FINISHED, Event
from shared.queue import Ending, JobQueue, Verdict, Write, Written
from shared.redis import describe, is_passing
from worker.inflight import InFlight, Job
from worker.sequence import Output

logger = logging.getLogger(__name__)

TICK = 0.1  # s; how late a deadline or a piece of an unread log can be noticed
UNREAD_TOKENS = 32  # a log that nobody follows is written in pieces of so many tokens,
UNREAD_INTERVAL = 0.5  # or after so many seconds
RETRY_DELAYS = (0.05, 0.1, 0.2, 0.5)  # s while Redis is away; the last one repeats
MESSAGES = {
    CANCELLED: "the job was cancelled",
    EXPIRED: "the deadline passed before the job was finished",
}
REASONS = {
    Verdict.GONE.name: "Redis has lost them",
    Verdict.DIFFERS.name: "Redis has lost a part of their logs",
    Verdict.FENCED.name: "another attempt has begun",
}
SHOWN_IDS = 3  # in a log line


class Publisher:
    """`abort(job id)` tells the engine that a row is not wanted any more; `on_change()` is called when another job may
    be taken."""

    def __init__(
        self,
        queue: JobQueue,
        jobs: InFlight,
        *,
        abort: Callable[[str], None],
        on_change: Callable[[], None],
        max_pending_tokens: int,
    ) -> None:
        self._queue = queue
        self._jobs = jobs
        self._abort = abort
        self._on_change = on_change
        self._max_pending_tokens = max_pending_tokens
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._room = threading.Condition()
        self._outputs: list[Output] = []  # from the engine thread, under _room
        self._num_pending = 0  # tokens handed over and not yet written, under _room
        self._lost: list[tuple[Job, str]] = []  # jobs dropped since the last report, and why

    def push(self, outputs: Sequence[Output]) -> None:
        """Take a step's outputs. From the engine thread."""
        with self._room:
            self._outputs += outputs
            self._num_pending += sum(len(output.token_ids) for output in outputs)
        self._loop.call_soon_threadsafe(self._wake.set)

    def has_room(self, timeout: float) -> bool:
        """Whether more may be pushed; waits at most `timeout` s for it. From the engine thread."""
        with self._room:
            return self._room.wait_for(lambda: self._num_pending < self._max_pending_tokens, timeout)

    def cancel(self, job_id: str) -> None:
        """End a job at once, because its client said so."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.is_cancelled = True
            self._wake.set()

    def lose(self, job_id: str, epoch: str) -> None:
        """Drop a job whose attempt is over: it belongs to another one now, of this worker or another."""
        job = self._jobs.get(job_id, epoch)
        if job is not None:
            self._lose(job, "their leases have gone to another attempt")

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wait()
            await self.flush()

    async def flush(self, *, everything: bool = False) -> None:
        """Write all that is due, or all there is."""
        self._collect()
        await self._report_lost()
        await self._end_early()
        await self._write([_next_write(job) for job in self._jobs if everything or _is_due(job)])
        if everything:  # what came after an event that was still under way
            await self._write([_next_write(job) for job in self._jobs if job.num_outstanding])

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK):
                await self._wake.wait()
        self._wake.clear()

    def _collect(self) -> None:
        with self._room:
            outputs, self._outputs = self._outputs, []
        for output in outputs:
            job = self._jobs.get(output.id, output.epoch)
            if job is None:
                self._forget(len(output.token_ids))
            else:
                job.add(output)

    async def _end_early(self) -> None:
        """End jobs that were cancelled or whose time is up; what they have pending is not wanted any more."""
        now = time.monotonic()
        over = [(job, CANCELLED) for job in self._jobs if job.is_cancelled]
        over += [(job, EXPIRED) for job in self._jobs if job.deadline <= now and not job.is_cancelled]
        await self._write([(job, Write(ending=_ending(job, status))) for job, status in over])

    async def _write(self, writes: Sequence[tuple[Job, Write]]) -> None:
        """Repeat, unchanged, what Redis cannot take now. What the engine adds meanwhile belongs to the next events."""
        failures = 0
        while writes:
            again = []
            for (job, write), written in zip(writes, await self._call(writes), strict=True):
                if not self._holds(job):
                    continue  # dropped meanwhile, with all that it had outstanding
                if written.error is not None and is_passing(written.error):
                    again.append((job, write))
                    error = written.error
                else:
                    self._settle(job, write, written)
            await self._report_lost()
            if again:
                await _pause(failures, error)
                failures += 1
            writes = again

    async def _call(self, writes: Sequence[tuple[Job, Write]]) -> Sequence[Written]:
        try:
            return await self._queue.write([write for _, write in writes])
        except RedisError as error:
            return [Written(emitted=error)] * len(writes)
        except OSError as error:
            return [Written(emitted=RedisConnectionError(str(error)))] * len(writes)

    def _settle(self, job: Job, write: Write, written: Written) -> None:
        """Redis has answered for good."""
        if written.error is not None:
            self._lose(job, describe(written.error))
        elif self._is_logged(job, write.event, written.emitted) and isinstance(written.finished, Verdict):
            if written.finished.is_written:
                self._drop(job)
            else:
                self._lose(job, written.finished.name)

    def _is_logged(self, job: Job, event: Event | None, reply: object) -> bool:
        """Whether the event, if there is one, is in the log now."""
        if event is None or not isinstance(reply, tuple):
            return True
        verdict, num_readers = reply
        if verdict.is_written:  # ALREADY: the reply of an earlier call was lost
            was_suspect = job.is_suspect
            self._forget(len(event.token_ids))
            job.written(event, num_readers=num_readers if verdict is Verdict.OK else 1)
            if was_suspect and not job.is_suspect:
                self._on_change()
        elif verdict is Verdict.CANCELLED:
            self.cancel(job.id)  # and its ending was refused, if there was one
        else:
            self._lose(job, verdict.name)
        return bool(verdict.is_written)

    def _lose(self, job: Job, reason: str) -> None:
        self._drop(job)
        self._lost.append((job, reason))

    async def _report_lost(self) -> None:
        """One line for all that were dropped for one reason. Where the log differs, Redis has lost its tail and takes
        this attempt for a live one: the job is handed back, so that it need not wait until its lease has run out."""
        lost, self._lost = self._lost, []
        for reason in dict.fromkeys(reason for _, reason in lost):
            ids = [job.id for job, other in lost if other == reason]
            logger.warning("%d jobs dropped (%s): %s", len(ids), REASONS.get(reason, reason), _shortened(ids))
        for job, reason in lost:
            if reason == Verdict.DIFFERS.name:
                with suppress(RedisError, OSError):  # then its lease runs out
                    await self._queue.release(job.id, job.epoch)

    def _drop(self, job: Job) -> None:
        """The job has left the worker."""
        if not self._holds(job):
            return
        self._forget(job.num_outstanding)
        if job.last is None:
            self._abort(job.id)
        self._jobs.remove(job)
        self._on_change()

    def _holds(self, job: Job) -> bool:
        """Whether this attempt is still this worker's; another one of the same job may have come in its place."""
        return self._jobs.get(job.id) is job

    def _forget(self, num_tokens: int) -> None:
        """So many tokens are not outstanding any more."""
        with self._room:
            self._num_pending -= num_tokens
            self._room.notify_all()


def _is_due(job: Job) -> bool:
    if job.last:
        return True
    if not job.num_outstanding:
        return False
    if job.num_tokens == 0 or job.is_suspect or (job.is_streamed and job.has_readers):
        return True
    waited = time.monotonic() - job.written_at
    return job.num_outstanding >= UNREAD_TOKENS or waited >= UNREAD_INTERVAL


def _next_write(job: Job) -> tuple[Job, Write]:
    """All that is pending, and the ending if this is all."""
    event = job.take_event()
    ending = None
    if job.last is not None and not job.pending_tokens:
        ending = _ending(job, FAILED if job.last.error else FINISHED, event)
    return job, Write(event, job.hash, ending)


def _ending(job: Job, status: str, event: Event | None = None) -> Ending:
    """The end of a job, right after its log so far or after `event`."""
    error = {"code": status, "message": MESSAGES[status]} if status in MESSAGES else None
    finish_reason = ""
    if job.last is not None and status == FAILED:
        error = {"code": "engine_error", "message": job.last.error}
    elif job.last is not None and status == FINISHED:
        finish_reason = job.last.finish_reason
    seq, text = (event.seq, event.text) if event else (job.seq, "")
    return Ending(job.id, job.epoch, seq + 1, status, finish_reason, error, "".join([*job.text, text]))


def _shortened(ids: Sequence[str]) -> str:
    return ", ".join(ids[:SHOWN_IDS]) + (", ..." if len(ids) > SHOWN_IDS else "")


async def _pause(failures: int, error: RedisError) -> None:
    if failures == 0:
        logger.warning("Redis cannot take what was generated, trying again: %s", describe(error))
    await asyncio.sleep(RETRY_DELAYS[min(failures, len(RETRY_DELAYS) - 1)])
