"""The reader of one job: its events 1..n in order, once each, whatever is lost on the way. Hints come from the hub;
the log is the truth. Position and running hash are checked for every event, arrival order is never trusted. Where Redis
has lost what the reader was given, what the reader was given wins: the job is submitted again with it."""

import logging
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from redis.exceptions import RedisError

from api.hub import Subscription
from api.transcript import Transcript
from shared.messages import FAILED, START_HASH, TERMINAL, Event, running_hash
from shared.queue import LOG_PAGE, JobQueue, Resubmission
from shared.redis import describe

logger = logging.getLogger(__name__)

MAX_QUIET_FACTOR = 5  # a job that stays quiet is looked at less often, down to 1/5 of the watchdog's rate
MAX_OUTAGE_FACTOR = 2  # a Redis that cannot serve is asked more often: its readers want to know when it is back
MAX_RECOVERIES = 5  # of a job, without a new event in between
OUTAGE_SLACK = 30.0  # s beyond the job's deadline; only a Redis that stays away can last so long


@dataclass(frozen=True, slots=True)
class Loss:
    """An end that the relay makes up because the job's own end cannot be had."""

    code: str
    message: str


SHUTTING_DOWN = Loss("shutting_down", "this API process is shutting down; the job goes on, read it at /jobs/{id}")
LOST = Loss("job_lost", "Redis has lost the job")
DIVERGED = Loss("job_lost", "Redis has lost a part of the job; what follows would not continue what was sent")
UNREACHABLE = Loss("redis_unavailable", "Redis stayed away until after the job's deadline")


class Relay:
    """Iterate over `batches()` once. `transcript`, empty, if the job may be submitted again; a reader that knows no
    more than its job's id has none, and ends with an error when Redis has lost the job."""

    def __init__(
        self,
        queue: JobQueue,
        job_id: str,
        subscription: Subscription,
        *,
        watchdog_interval: float,
        timeout: float,
        transcript: Transcript | None = None,
    ) -> None:
        self.job_id = job_id
        self.is_over = False  # a last event was delivered
        self._queue = queue
        self._subscription = subscription
        self._watchdog_interval = watchdog_interval
        self._give_up_at = time.monotonic() + timeout + OUTAGE_SLACK
        self._seq = 0
        self._hash = START_HASH
        self._num_tokens = 0
        self._num_quiet = 0
        self._transcript = transcript
        self._loss: Loss | None = None  # noticed, and not yet repaired
        self._num_recoveries = 0

    async def batches(self) -> AsyncIterator[list[Event]]:
        """Events in the order of the log, in lists as they come; the very last one is terminal."""
        while not self.is_over:
            batch = await self._next_batch()
            if batch:
                self._num_quiet = 0
                yield batch

    async def _next_batch(self) -> list[Event]:
        if self._subscription.is_closed:
            return [self._end(SHUTTING_DOWN)]
        try:
            if self._loss is not None:
                return await self._recover(self._loss)
            if self._subscription.is_stale:
                return await self._catch_up()
            if await self._subscription.wait(self._patience(MAX_QUIET_FACTOR)):
                return self._accept_hints(self._subscription.take())
            return await self._look()
        except RedisError as error:
            return await self._wait_for_redis(error)

    def _patience(self, max_factor: int) -> float:
        return self._watchdog_interval * min(1 << self._num_quiet, max_factor)

    async def _catch_up(self) -> list[Event]:
        self._subscription.is_stale = False  # before reading: what is published meanwhile is buffered
        return await self._look()

    async def _look(self) -> list[Event]:
        """Find what no hint told, end the job if its deadline has passed, notice what Redis has lost."""
        self._num_quiet += 1
        page = await self._read()
        if page or self._loss is not None:
            return self._accept_log(page)
        status = await self._queue.expire(self.job_id)
        if status is None:
            self._loss = LOST
        elif status in TERMINAL:
            page = await self._read()
            self._loss = self._loss or (None if page else LOST)
        return self._accept_log(page)

    async def _read(self) -> list[Event]:
        """What the log has behind the reader's position; [], and a loss, if it does not have that."""
        page = await self._queue.read_log(self.job_id, max(0, self._seq - 1))
        if len(page) == LOG_PAGE:
            self._subscription.mark_stale()  # there may be more to read
        if self._seq == 0:
            return page
        if not page or page[0].hash != self._hash or page[0].num_tokens != self._num_tokens:
            self._loss = LOST if not page else DIVERGED
            return []
        return page[1:]

    async def _recover(self, loss: Loss) -> list[Event]:
        """Submit the job again as far as the reader has it: the reader notices no more than a pause. Without a
        transcript, give another reader some time to do it."""
        if self._num_recoveries >= MAX_RECOVERIES:
            return [self._end(loss)]
        self._subscription.mark_stale()
        if self._transcript is None:
            await self._subscription.wait(self._watchdog_interval)
        else:
            answer = await self._transcript.resubmit(self._queue)
            if answer is Resubmission.REFUSED:
                return [self._end(DIVERGED)]
            if answer is Resubmission.DONE:
                logger.warning("job %s: Redis has lost data, submitted again after event %d", self.job_id, self._seq)
        self._num_recoveries += 1
        self._num_quiet = 0
        self._loss = None
        return []

    async def _wait_for_redis(self, error: RedisError) -> list[Event]:
        self._subscription.mark_stale()
        if time.monotonic() > self._give_up_at:
            return [self._end(UNREACHABLE)]
        logger.debug("job %s: cannot read the log: %s", self.job_id, describe(error))
        await self._subscription.wait(self._patience(MAX_OUTAGE_FACTOR))
        self._num_quiet += 1
        return []

    def _accept_hints(self, messages: Iterable[str]) -> list[Event]:
        accepted: list[Event] = []
        for message in messages:
            try:
                event, previous_hash = Event.from_message(message)
            except (ValueError, KeyError, TypeError, AttributeError):
                self._subscription.mark_stale()  # not one of ours; the log knows
                break
            if event.job_id != self.job_id:
                logger.error("job %s: got an event of job %s, dropped", self.job_id, event.job_id)
            elif event.seq > self._seq:
                if previous_hash != self._hash or not self._continues(event):
                    self._subscription.mark_stale()
                    break
                accepted.append(self._advance(event))
        return accepted

    def _accept_log(self, page: Iterable[Event]) -> list[Event]:
        accepted: list[Event] = []
        for event in page:
            if not self._continues(event):
                self._loss = DIVERGED
                break
            accepted.append(self._advance(event))
        return accepted

    def _continues(self, event: Event) -> bool:
        return event.seq == self._seq + 1 and running_hash(self._hash, event.token_ids) == event.hash

    def _advance(self, event: Event) -> Event:
        self._seq, self._hash, self._num_tokens = event.seq, event.hash, event.num_tokens
        self.is_over = event.is_terminal
        self._num_recoveries = 0
        if self._transcript is not None:
            self._transcript.add(event)
        return event

    def _end(self, loss: Loss) -> Event:
        self.is_over = True
        error = {"code": loss.code, "message": loss.message.replace("{id}", self.job_id)}
        return Event(self.job_id, 0, "", FAILED, (), "", self._num_tokens, self._hash, {"error": error})
