"""Takes jobs from the queue whenever a slot is free, and hands them to the engine thread."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress

from redis.exceptions import RedisError

from shared.queue import Delivery, JobQueue
from shared.redis import describe
from worker.detokenizer import Vocabulary
from worker.engines.base import EngineInfo
from worker.inflight import InFlight, Job
from worker.sequence import Sequence

logger = logging.getLogger(__name__)

RETRY_DELAY = 0.5  # s after an error of Redis


class Consumer:
    """`run_row` starts a row in the engine; `lose(job id, epoch)` drops an attempt that is over. `queue`'s client must
    not repeat commands: a repeated take would hand out jobs into a lost reply."""

    def __init__(
        self,
        queue: JobQueue,
        jobs: InFlight,
        *,
        worker_id: str,
        info: EngineInfo,
        run_row: Callable[[Sequence], None],
        lose: Callable[[str, str], None],
        poll_interval: float,
        max_starts: int,
    ) -> None:
        self._queue = queue
        self._jobs = jobs
        self._worker_id = worker_id
        self._info = info
        self._run_row = run_row
        self._lose = lose
        self._poll_interval = poll_interval
        self._max_starts = max_starts
        self._vocabulary = Vocabulary(info.tokenizer_json)
        self._wake = asyncio.Event()
        self._is_reply_lost = False
        self._is_stopping = False

    def wake(self) -> None:
        """A job may be waiting, or a slot has become free."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after the take that is under way: cancelled, it would leave jobs that no worker knows of."""
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Take jobs until stopped."""
        while not self._is_stopping:
            self._wake.clear()
            try:
                await self.fill()
            except (RedisError, OSError) as error:
                if not self._is_reply_lost:
                    logger.warning("cannot take jobs, trying again: %s", describe(error))
                self._is_reply_lost = True
                await asyncio.sleep(RETRY_DELAY)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval):
                    await self._wake.wait()

    async def fill(self) -> None:
        """Take as many jobs as there are free slots."""
        free = self._info.max_num_seqs - len(self._jobs)
        if free > 0 and not self._jobs.has_suspect:
            recover = self._jobs.ids if self._is_reply_lost else None
            nonce = secrets.token_hex(4)
            deliveries = await self._queue.take(
                self._worker_id, free, nonce=nonce, max_starts=self._max_starts, recover=recover
            )
            self._is_reply_lost = False
            for delivery in deliveries:
                self._start(delivery)

    def _start(self, delivery: Delivery) -> None:
        row = Sequence(
            delivery.request,
            delivery.epoch,
            vocabulary=self._vocabulary,
            eos_token_ids=self._info.eos_token_ids,
            logged=[token for event in delivery.log for token in event.token_ids],
        )
        earlier = self._jobs.get(row.id)
        if earlier is not None:  # submitted again while this worker still runs it: the engine knows rows by job id
            self._lose(earlier.id, earlier.epoch)
        self._jobs.add(Job(delivery))
        self._run_row(row)
