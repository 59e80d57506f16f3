"""Writes what the engine makes to Redis: one pipeline of `emit` for all rows of a step, then `finish` for those that
ended. While one pipeline is under way, new tokens gather and go out together in the next: the engine waits only
when `max_pending_tokens` are outstanding."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from shared.messages import CANCELLED, EXPIRED, FAILED, FINISHED, Event
from shared.queue import Ending, JobQueue, Verdict
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

ItemT = TypeVar("ItemT")
ReplyT = TypeVar("ReplyT")


class Publisher:
    """`abort` tells the engine that a row is not wanted any more; `on_removed` that jobs have left the worker."""

    def __init__(
        self,
        queue: JobQueue,
        jobs: InFlight,
        *,
        abort: Callable[[str], None],
        on_removed: Callable[[], None],
        max_pending_tokens: int,
    ) -> None:
        self._queue = queue
        self._jobs = jobs
        self._abort = abort
        self._on_removed = on_removed
        self._max_pending_tokens = max_pending_tokens
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._room = threading.Condition()
        self._outputs: list[Output] = []  # from the engine thread, under _room
        self._num_pending = 0  # tokens handed over and not yet written, under _room

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

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wait()
            await self.flush()

    async def flush(self, *, everything: bool = False) -> None:
        """Write all that is due, or all there is."""
        self._collect()
        await self._end_early()
        due = [job for job in self._jobs if job.pending_tokens and (everything or _is_due(job))]
        if due:
            await self._write(due)
        ended = [job for job in self._jobs if job.last and not job.pending_tokens]
        await self._finish([(job, _ending(job, FAILED if job.last and job.last.error else FINISHED)) for job in ended])

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
        endings = [(job, _ending(job, CANCELLED)) for job in self._jobs if job.is_cancelled]
        endings += [(job, _ending(job, EXPIRED)) for job in self._jobs if job.deadline <= now and not job.is_cancelled]
        await self._finish(endings)

    async def _write(self, jobs: Sequence[Job]) -> None:
        """Write an event for each job. What the engine adds from now on belongs to the next one."""
        events = [(job, job.take_event()) for job in jobs]
        cancelled = []
        async for (job, event), reply in _answers(events, self._emit):
            self._forget(len(event.token_ids))
            if isinstance(reply, RedisError):
                self._lose(job, describe(reply))
            elif reply[0].is_written:  # ALREADY: the reply of an earlier call was lost
                job.written(event, num_readers=reply[1] if reply[0] is Verdict.OK else 1)
            elif reply[0] is Verdict.CANCELLED:
                cancelled.append((job, _ending(job, CANCELLED)))
            else:
                self._lose(job, reply[0].name.lower())
        await self._finish(cancelled)

    async def _emit(self, events: Sequence[tuple[Job, Event]]) -> Sequence[tuple[Verdict, int] | RedisError]:
        return await self._queue.emit([(event, job.hash) for job, event in events])

    async def _finish(self, endings: Sequence[tuple[Job, Ending]]) -> None:
        async for (job, ending), reply in _answers(endings, self._end):
            if isinstance(reply, RedisError):
                self._lose(job, describe(reply))
            elif reply.is_written:
                self._drop(job)
            else:
                self._lose(job, f"{ending.status}, but {reply.name.lower()}")

    async def _end(self, endings: Sequence[tuple[Job, Ending]]) -> Sequence[Verdict | RedisError]:
        return await self._queue.finish([ending for _, ending in endings])

    def _lose(self, job: Job, reason: str) -> None:
        logger.warning("job %s is dropped: %s", job.id, reason)
        self._drop(job)

    def _drop(self, job: Job) -> None:
        """The job has left the worker."""
        self._forget(len(job.pending_tokens))
        if job.last is None:
            self._abort(job.id)
        self._jobs.remove(job)
        self._on_removed()

    def _forget(self, num_tokens: int) -> None:
        """So many tokens are not outstanding any more."""
        with self._room:
            self._num_pending -= num_tokens
            self._room.notify_all()


def _is_due(job: Job) -> bool:
    if job.last or job.num_tokens == 0 or (job.is_streamed and job.has_readers):
        return True
    waited = time.monotonic() - job.written_at
    return len(job.pending_tokens) >= UNREAD_TOKENS or waited >= UNREAD_INTERVAL


def _ending(job: Job, status: str) -> Ending:
    error = {"code": status, "message": MESSAGES[status]} if status in MESSAGES else None
    finish_reason = ""
    if job.last and status == FAILED:
        error = {"code": "engine_error", "message": job.last.error}
    elif job.last and status == FINISHED:
        finish_reason = job.last.finish_reason
    return Ending(job.id, job.epoch, job.seq + 1, status, finish_reason, error, "".join(job.text))


async def _answers(
    items: Sequence[ItemT], call: Callable[[Sequence[ItemT]], Awaitable[Sequence[ReplyT | RedisError]]]
) -> AsyncIterator[tuple[ItemT, ReplyT | RedisError]]:
    """Call Redis for all items, and again, unchanged, for those that it could not serve now."""
    failures = 0
    while items:
        replies = await _call(items, call)
        again = []
        for item, reply in zip(items, replies, strict=True):
            if isinstance(reply, RedisError) and is_passing(reply):
                again.append(item)
                error = reply
            else:
                yield item, reply
        if again:
            if failures == 0:
                logger.warning("Redis cannot take what was generated, trying again: %s", describe(error))
            await asyncio.sleep(RETRY_DELAYS[min(failures, len(RETRY_DELAYS) - 1)])
            failures += 1
        items = again


async def _call(
    items: Sequence[ItemT], call: Callable[[Sequence[ItemT]], Awaitable[Sequence[ReplyT | RedisError]]]
) -> Sequence[ReplyT | RedisError]:
    try:
        return await call(items)
    except RedisError as error:
        return [error] * len(items)
    except OSError as error:
        return [RedisConnectionError(str(error))] * len(items)
