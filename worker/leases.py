"""Leases: the idle time of each job's entry. A worker renews those of its jobs as long as its engine moves; any worker
reaps those that ran out. A stall of Redis, or of the reaper itself, must never steal live work: after any sign of one a
reaper waits for a full lease, in which the owners have their say."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

from shared.queue import JobQueue
from shared.redis import describe
from worker.inflight import InFlight

logger = logging.getLogger(__name__)

RENEWALS = 5  # a lease is renewed so often before it would run out
SWEEPS = 4  # and looked at so often
SWEEP_COUNT = 100  # entries a sweep looks at in each class
PATIENCE_SHARE = 0.2  # of a lease: a sweep that Redis comes to later than this does nothing
GAP_SHARE = 0.5  # a tick that takes longer than this share of a lease more than it should is a stall


class Leases:
    """`is_moving` says whether the engine makes progress; `lose(job id, epoch)` drops an attempt that is over."""

    def __init__(
        self,
        queue: JobQueue,
        jobs: InFlight,
        *,
        worker_id: str,
        lease: float,
        is_moving: Callable[[], bool],
        lose: Callable[[str, str], None],
    ) -> None:
        self._queue = queue
        self._jobs = jobs
        self._worker_id = worker_id
        self._lease = lease
        self._is_moving = is_moving
        self._lose = lose
        self._steady_since = time.monotonic()
        self._is_stalled = False
        self._cursors: list[str] | None = None
        self._clock_offset = 0.0  # Redis clock minus ours, s

    async def renew(self) -> None:
        """Renew until cancelled."""
        while True:
            await self._tick(self._renew, self._lease / RENEWALS)

    async def reap(self) -> None:
        """Reap until cancelled."""
        while True:
            interval = self._lease / SWEEPS * random.uniform(0.75, 1.25)  # spreads the sweeps of a fleet
            await self._tick(self._reap, interval)

    async def _tick(self, call: Callable[[], Awaitable[None]], interval: float) -> None:
        """Call and wait. An error, or a delay on either side, is a sign of a stall."""
        start = time.monotonic()
        try:
            await call()
        except (RedisError, OSError) as error:
            self._steady_since = time.monotonic()
            logger.debug("leases: %s", describe(error))
        await asyncio.sleep(interval)
        now = time.monotonic()
        if now - start > interval + GAP_SHARE * self._lease:
            self._steady_since = now

    async def _renew(self) -> None:
        if not self._is_moving():
            if not self._is_stalled:
                logger.error("the engine does not come round: its jobs are left to other workers")
            self._is_stalled = True
            return
        self._is_stalled = False
        epochs = self._jobs.epochs
        if epochs:
            for job_id in await self._queue.renew(self._worker_id, epochs):
                self._lose(job_id, epochs[job_id])

    async def _reap(self) -> None:
        is_steady = time.monotonic() - self._steady_since >= self._lease
        latest = self._redis_time() + PATIENCE_SHARE * self._lease if is_steady else 0.0
        sweep = await self._queue.reap(
            self._worker_id, lease=self._lease, count=SWEEP_COUNT, latest=latest, cursors=self._cursors
        )
        self._cursors = sweep.cursors
        self._clock_offset = sweep.now - time.monotonic()
        if sweep.is_late and is_steady:
            self._steady_since = time.monotonic()
        for job_id in sweep.reaped:
            logger.warning("job %s was left by its worker: queued again", job_id)

    def _redis_time(self) -> float:
        """The Redis clock now, s, by what the last answer said."""
        return time.monotonic() + self._clock_offset
