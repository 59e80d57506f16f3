"""A worker whose every step is made by the test, straight through JobQueue."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from shared.keys import QueueKeys, models_key, queue_name, tokenizer_key
from shared.messages import FAILED, FINISHED, START_HASH, TOKEN, Event, ModelCard, running_hash
from shared.queue import Delivery, Ending, JobQueue, Verdict
from shared.tasks import cancel
from tests.support.eventually import eventually
from worker.engines.fake import fake_tokenizer

PREFIX = "forebay"
MODEL = "test-model"
CONTEXT = 64  # tokens; the tokenizer makes one of every byte
VOCABULARY = 257
TTL = 600


class Attempt:
    """One delivered job, as its worker sees it."""

    def __init__(self, queue: JobQueue, delivery: Delivery) -> None:
        self.request = delivery.request
        self.queue = queue
        self.epoch = delivery.epoch
        self.seq = len(delivery.log)
        self.num_tokens = delivery.log[-1].num_tokens if delivery.log else 0
        self.hash = delivery.log[-1].hash if delivery.log else START_HASH
        self.text = "".join(event.text for event in delivery.log)

    @property
    def id(self) -> str:
        return self.request.id

    def next_event(self, *pieces: str) -> tuple[Event, str]:
        """The next event, one token a piece (its id: the first character's), and the hash before it."""
        token_ids = tuple(ord(piece[0]) for piece in pieces)
        previous, self.hash = self.hash, running_hash(self.hash, token_ids)
        self.seq += 1
        self.num_tokens += len(token_ids)
        text = "".join(pieces)
        self.text += text
        return Event(self.id, self.seq, self.epoch, TOKEN, token_ids, text, self.num_tokens, self.hash), previous

    async def emit(self, *pieces: str) -> Verdict:
        """Log and publish one event of one token a piece."""
        return (await self.emit_all([self.next_event(*pieces)]))[0]

    async def emit_all(self, events: Sequence[tuple[Event, str]]) -> list[Verdict]:
        """Log and publish events in one round trip."""
        replies = await self.queue.emit(events)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        verdicts = [reply[0] for reply in replies]
        self.seq -= sum(not verdict.is_written for verdict in verdicts)
        return verdicts

    async def finish(self, reason: str = "stop") -> Verdict:
        """The normal end."""
        ending = Ending(self.id, self.epoch, self.seq + 1, FINISHED, finish_reason=reason, result=self.text)
        return await self._end(ending)

    async def fail(self, code: str = "engine_error", message: str = "the engine broke") -> Verdict:
        """The engine's fault."""
        return await self._end(
            Ending(self.id, self.epoch, self.seq + 1, FAILED, error={"code": code, "message": message})
        )

    async def cancelled(self) -> Verdict:
        """What a worker does when an emit says that the job was cancelled."""
        error = {"code": "cancelled", "message": "the job was cancelled"}
        return await self._end(Ending(self.id, self.epoch, self.seq + 1, "cancelled", error=error))

    async def _end(self, ending: Ending) -> Verdict:
        (verdict,) = await self.queue.finish([ending])
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


class ScriptedWorker:
    """Serves one model; `announce` makes it known as a heartbeat would."""

    def __init__(self, client: Redis, *, model: str = MODEL, max_model_len: int = CONTEXT) -> None:
        self.client = client
        self.model = model
        self.max_model_len = max_model_len
        self.queue = JobQueue(client, QueueKeys(PREFIX, queue_name(model)))
        self._nonce = 0

    async def announce(self, *, age: float = 0) -> None:
        """A heartbeat `age` s ago."""
        text = fake_tokenizer().to_str()
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        await self.client.set(tokenizer_key(PREFIX, sha256), text, ex=TTL)
        seconds, microseconds = await self.client.time()
        updated_at = seconds * 1000 + microseconds // 1000 - round(age * 1000)
        card = ModelCard(
            self.model, self.queue.keys.queue, "scripted", self.max_model_len, VOCABULARY, sha256, updated_at
        )
        await self.client.hset(models_key(PREFIX), self.model, card.to_json())
        await self.client.expire(models_key(PREFIX), TTL)

    async def take(self, count: int = 1) -> list[Attempt]:
        """Wait until there are `count` jobs and start them."""
        attempts: list[Attempt] = []

        async def take_more() -> bool:
            attempts.extend(await self.take_now(count - len(attempts)))
            return len(attempts) == count

        await eventually(take_more, f"{count} jobs are queued")
        return attempts

    async def take_now(self, count: int) -> list[Attempt]:
        """Start what is queued now."""
        self._nonce += 1
        deliveries = await self.queue.take("scripted", count, nonce=str(self._nonce), max_starts=3)
        return [Attempt(self.queue, delivery) for delivery in deliveries]

    @asynccontextmanager
    async def answering(self, *pieces: str, reason: str = "stop") -> AsyncIterator[None]:
        """Meanwhile, answer every job with these pieces, without any delay."""
        task = asyncio.create_task(self._answer(pieces, reason))
        try:
            yield
        finally:
            await cancel(task)
            if not task.cancelled():
                task.result()  # raises what has ended it too early

    async def _answer(self, pieces: Sequence[str], reason: str) -> None:
        while True:
            for attempt in await self.take_now(64):
                events = [attempt.next_event(piece) for piece in pieces]
                await attempt.emit_all(events)
                await attempt.finish(reason)
            await asyncio.sleep(0.002)

    async def num_queued(self) -> int:
        """Entries in the job streams, taken or not."""
        return sum([await self.client.xlen(self.queue.keys.jobs(name)) for name in ("resume", "interactive", "batch")])

    async def status(self, job_id: str) -> Any:
        """Status of a job."""
        return await self.client.hget(self.queue.keys.job(job_id), "status")
