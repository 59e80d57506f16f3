"""A queue in Redis: typed callers of the scripts, and reads of what they wrote. Errors of Redis pass through."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from shared.errors import QueueFullError
from shared.keys import JOB_CLASSES, QueueKeys
from shared.messages import FAILED, Event, JobRequest
from shared.scripts import script

logger = logging.getLogger(__name__)

LOG_PAGE = 256  # events read at once

Call = tuple[str, tuple[str | int, ...]]  # a script's name and its arguments


class Verdict(IntEnum):
    """What Redis says of a worker's write."""

    OK = 1
    ALREADY = 2
    GONE = 0
    FENCED = -1
    DIFFERS = -2
    CANCELLED = -3

    @property
    def is_written(self) -> bool:
        return self > 0


class Resubmission(IntEnum):
    """What Redis says of a job that a reader submits again."""

    DONE = 1
    NOT_NEEDED = 0  # the log continues what the reader has
    REFUSED = -1  # another reader has seen something else, and was first


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job handed to a worker: the attempt's epoch, and what earlier attempts have logged."""

    request: JobRequest
    epoch: str
    time_left: float  # s until the deadline
    log: tuple[Event, ...]
    is_suspect: bool = False  # its last worker died

    @classmethod
    def from_reply(cls, reply: Sequence[Any]) -> Self:
        job_id, epoch, request, time_left_ms, entries, is_suspect = reply
        log = tuple(_event_of_script(job_id, entry) for entry in entries)
        return cls(JobRequest.from_json(request), epoch, time_left_ms / 1000, log, bool(is_suspect))


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a look at the leases found."""

    reaped: list[str]  # ids of the jobs that were queued again
    cursors: list[str]  # for the next look
    now: float  # s, Redis clock
    is_late: bool  # Redis came to it too late, and nothing was done


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ends: event number `seq` of its log will be terminal."""

    job_id: str
    epoch: str
    seq: int
    status: str  # one of messages.TERMINAL
    finish_reason: str = ""
    error: Mapping[str, Any] | None = None
    result: str = ""  # the whole text

    def to_args(self) -> tuple[str | int, ...]:
        problem = json.dumps(self.error, ensure_ascii=False) if self.error else ""
        return (self.job_id, self.epoch, self.seq, self.status, self.finish_reason, problem, self.result)


@dataclass(frozen=True, slots=True)
class Write:
    """What is to be said of a job: an event (which continues a log of hash `previous_hash`), its ending, or both."""

    event: Event | None = None
    previous_hash: str = ""
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What Redis answered to a Write: verdict and number of readers of the event, verdict on the ending; or errors."""

    emitted: tuple[Verdict, int] | RedisError | None = None
    finished: Verdict | RedisError | None = None

    @property
    def error(self) -> RedisError | None:
        """The first error, if any."""
        return next((reply for reply in (self.emitted, self.finished) if isinstance(reply, RedisError)), None)


@dataclass(frozen=True, slots=True)
class JobQueue:
    """One queue as seen by one process."""

    client: Redis
    keys: QueueKeys

    async def enqueue(self, requests: Sequence[JobRequest], *, max_waiting: int, timeout: float, keep: float) -> int:
        """Accept all requests (of one class), or raise QueueFullError. Returns the first one's place in the queue.
        They expire after `timeout` s; once ended they can be read for `keep` s. Repeating a call changes nothing."""
        args: list[str | int] = [requests[0].job_class, max_waiting, _ms(timeout), _ms(keep)]
        for request in requests:
            size = len(request.prompt_token_ids)
            args += [request.id, request.to_json(), request.tenant, size, request.sampling_params.max_tokens]
        accepted, number = await script("enqueue").run(self.client, self.keys.base, *args)
        if not accepted:
            raise QueueFullError(number, max_waiting)
        return int(number)

    async def resubmit(
        self,
        request: JobRequest,
        events: Sequence[Event],
        *,
        age: float,
        timeout: float,
        keep: float,
        first_token: float | None,
    ) -> Resubmission:
        """Bring back a job that Redis has lost in whole or in part, with the `events` 1..n that a reader has. It was
        accepted `age` s ago, and the reader's first token came `first_token` s after that. Repeating a call changes
        nothing."""
        first = "" if first_token is None else _ms(first_token)
        size = len(request.prompt_token_ids)
        args: list[str | int] = [request.id, request.to_json(), request.tenant, size]
        args += [_ms(age), _ms(timeout), _ms(keep), first]
        for event in events:
            args += [event.epoch, _token_list(event), event.text, event.num_tokens, event.hash]
        return Resubmission(await script("resubmit").run(self.client, self.keys.base, *args))

    async def take(
        self, worker_id: str, count: int, *, nonce: str, max_starts: int, recover: Collection[str] | None = None
    ) -> list[Delivery]:
        """Up to `count` jobs for this worker; a suspect comes alone. A job that was started `max_starts` times without
        making a token is given up. After a call whose reply was lost, pass the ids of the jobs that it
        runs as `recover`: jobs delivered to it but unknown to it come too."""
        args: list[str | int] = [worker_id, count, nonce, max_starts, int(recover is not None), *(recover or ())]
        replies = await script("take").run(self.client, self.keys.base, *args)
        deliveries = []
        for reply in replies:
            try:
                deliveries.append(Delivery.from_reply(reply))
            except (ValueError, TypeError, KeyError, AttributeError) as error:  # of an API of another version
                await self._refuse(reply, error)
        return deliveries

    async def leave(self, worker_id: str) -> None:
        """Forget a worker that holds no jobs any more."""
        await script("leave").run(self.client, self.keys.base, worker_id)

    async def emit(self, events: Sequence[tuple[Event, str]]) -> list[tuple[Verdict, int] | RedisError]:
        """Log and publish events, each given with the running hash before it, in one round trip.
        Returns for each the verdict and the number of readers reached, or the error."""
        replies = await self._pipeline([("emit", _emit_args(event, previous)) for event, previous in events])
        return [_emit_reply(reply) for reply in replies]

    async def finish(self, endings: Sequence[Ending]) -> list[Verdict | RedisError]:
        """End jobs, in one round trip. Returns for each the verdict, or the error."""
        replies = await self._pipeline([("finish", ending.to_args()) for ending in endings])
        return [_finish_reply(reply) for reply in replies]

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        """`emit`, then `finish`, for every job, all in one round trip. An ending whose event was not written is refused
        by Redis, since its number does not continue the log."""
        calls: list[Call] = []
        for write in writes:
            if write.event is not None:
                calls.append(("emit", _emit_args(write.event, write.previous_hash)))
            if write.ending is not None:
                calls.append(("finish", write.ending.to_args()))
        replies = iter(await self._pipeline(calls))
        return [
            Written(
                emitted=_emit_reply(next(replies)) if write.event is not None else None,
                finished=_finish_reply(next(replies)) if write.ending is not None else None,
            )
            for write in writes
        ]

    async def release(self, job_id: str, epoch: str) -> Verdict:
        """Hand a running job back; another worker continues it."""
        return Verdict(await script("release").run(self.client, self.keys.base, job_id, epoch))

    async def renew(self, worker_id: str, epochs: Mapping[str, str]) -> list[str]:
        """Renew the leases of jobs (id -> epoch). Returns the ids that are not this worker's any more."""
        args = [item for pair in epochs.items() for item in pair]
        lost: list[str] = await script("renew").run(self.client, self.keys.base, worker_id, *args)
        return lost

    async def reap(
        self, worker_id: str, *, lease: float, count: int, latest: float, cursors: Sequence[str] | None
    ) -> Sweep:
        """Queue jobs again whose lease of `lease` s has run out; looks at some `count` entries a class. Does nothing if
        Redis comes to it after `latest` (s, Redis clock)."""
        begin = cursors or ["0-0"] * len(JOB_CLASSES)
        args: list[str | int] = [worker_id, _ms(lease), count, _ms(latest), *begin]
        reaped, following, now, is_late = await script("reap").run(self.client, self.keys.base, *args)
        return Sweep(reaped, following, now / 1000, bool(is_late))

    async def cancel(self, job_id: str) -> str | None:
        """Cancel a job. Returns its status afterwards, None if it is unknown."""
        status: str | None = await script("cancel").run(self.client, self.keys.base, job_id, "cancel")
        return status

    async def expire(self, job_id: str) -> str | None:
        """End a job if its deadline has passed. Returns its status afterwards, None if it is unknown."""
        status: str | None = await script("cancel").run(self.client, self.keys.base, job_id, "expire")
        return status

    async def job(self, job_id: str) -> dict[str, str]:
        """All fields of a job, {} if it is unknown."""
        fields: dict[Any, Any] = await self.client.hgetall(self.keys.job(job_id))
        return fields

    async def read_log(self, job_id: str, after: int, *, count: int = LOG_PAGE) -> list[Event]:
        """The next events after number `after`, oldest first, at most `count`."""
        entries: Any = await self.client.xrange(self.keys.events(job_id), min=f"{after + 1}-0", count=count)
        return [Event.from_log(job_id, entry_id, fields) for entry_id, fields in entries]

    async def _refuse(self, reply: Sequence[Any], error: Exception) -> None:
        job_id, epoch, _, _, entries, _ = reply
        message = f"this worker cannot read the request ({type(error).__name__}: {error})"
        logger.error("job %s: %s", job_id, message)
        problem = {"code": "unreadable_request", "message": message}
        await self.finish([Ending(job_id, epoch, len(entries) + 1, FAILED, error=problem)])

    async def _pipeline(self, calls: Sequence[Call]) -> list[Any]:
        replies = await self._execute(calls)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            for name in {name for name, _ in calls}:
                await script(name).load(self.client)
            replies = await self._execute(calls)
        return replies

    async def _execute(self, calls: Sequence[Call]) -> list[Any]:
        async with self.client.pipeline(transaction=False) as pipeline:
            for name, args in calls:
                script(name).queue(pipeline, self.keys.base, *args)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
            return replies


def _emit_reply(reply: Any) -> tuple[Verdict, int] | RedisError:
    return reply if isinstance(reply, RedisError) else (Verdict(reply[0]), int(reply[1]))


def _finish_reply(reply: Any) -> Verdict | RedisError:
    return reply if isinstance(reply, RedisError) else Verdict(reply)


def _emit_args(event: Event, previous_hash: str) -> tuple[str | int, ...]:
    return (
        event.job_id,
        event.epoch,
        event.seq,
        event.num_tokens,
        event.hash,
        _token_list(event),
        event.text,
        event.to_message(previous_hash),
    )


def _token_list(event: Event) -> str:
    return json.dumps(event.token_ids, separators=(",", ":"))


def _event_of_script(job_id: str, entry: Sequence[Any]) -> Event:
    entry_id, flat = entry
    return Event.from_log(job_id, entry_id, dict(zip(flat[::2], flat[1::2], strict=True)))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
