"""A running worker: the engine thread and the event loop's tasks, put together, and taken down in order."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from redis.exceptions import RedisError

from shared.keys import QueueKeys, queue_name
from shared.queue import JobQueue
from shared.redis import connect
from shared.tasks import cancel
from worker.consumer import Consumer
from worker.control import Control
from worker.engine_thread import EngineThread
from worker.engines.base import Engine
from worker.heartbeat import Heartbeat
from worker.inflight import InFlight
from worker.leases import Leases
from worker.loop import Abort, Add, EngineLoop
from worker.publisher import Publisher
from worker.rate import Rate
from worker.settings import WorkerSettings
from worker.waiting import first_of

logger = logging.getLogger(__name__)

STOP_TIMEOUT = 5.0  # s for a step under way to end


class Worker:
    """One engine on one queue. `load` builds the engine, in the engine thread."""

    def __init__(
        self, settings: WorkerSettings, redis_url: str, load: Callable[[Callable[[str], None]], Engine]
    ) -> None:
        self._settings = settings
        self._redis_url = redis_url
        self._load = load
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._keys = QueueKeys(settings.key_prefix, queue_name(settings.model_name))
        self._client = connect(redis_url, retries=2)
        self._take_client = connect(redis_url)  # a repeated take would hand out jobs twice
        self._jobs = InFlight()
        self._status = "loading"
        self._loop: EngineLoop | None = None
        self._rate = Rate()
        self._heartbeat = Heartbeat(self._client, self._keys, settings, worker_id=self.id, facts=self._facts)

    async def run(self, stop: asyncio.Event) -> None:
        """Load, then serve until `stop` is set or a part dies; then drain. Raises what made it die."""
        beating = asyncio.create_task(self._heartbeat.run(), name="heartbeat")
        try:
            engine = EngineThread(self._load, self._progress)
            if await engine.loaded(stop):
                await self._serve(engine, stop)
        finally:
            await cancel(beating)
            await self._leave()

    async def _serve(self, engine: EngineThread, stop: asyncio.Event) -> None:
        queue = JobQueue(self._client, self._keys)
        publisher = Publisher(
            queue,
            self._jobs,
            abort=lambda job_id: loop.submit(Abort(job_id)),
            on_change=lambda: consumer.wake(),
            max_pending_tokens=self._settings.max_pending_tokens,
        )
        loop = self._loop = EngineLoop(engine.engine, publish=publisher.push, has_room=publisher.has_room)
        consumer = Consumer(
            JobQueue(self._take_client, self._keys),
            self._jobs,
            worker_id=self.id,
            info=engine.engine.info,
            run_row=lambda row: loop.submit(Add(row)),
            lose=publisher.lose,
            poll_interval=self._settings.poll_interval,
            max_starts=self._settings.max_attempts,
        )
        leases = Leases(
            queue,
            self._jobs,
            worker_id=self.id,
            lease=self._settings.lease,
            is_moving=lambda: time.monotonic() - loop.moved_at < self._settings.stall_timeout,
            lose=publisher.lose,
        )
        control = Control(self._redis_url, self._keys, wake=consumer.wake, cancel=publisher.cancel)
        thread = asyncio.create_task(engine.run(loop), name="engine")
        publishing = asyncio.create_task(publisher.run(), name="publisher")
        taking = asyncio.create_task(consumer.run(), name="consumer")
        listening = asyncio.create_task(control.run(), name="control")
        renewing = asyncio.create_task(leases.renew(), name="renew")
        reaping = asyncio.create_task(leases.reap(), name="reap")
        self._status = "ready"
        self._heartbeat.serve(engine.engine.info)
        await self._heartbeat.try_beat()  # be seen now, not at the next beat
        logger.info("ready: %s, %d slots, %s", self._settings.model_name, engine.engine.info.max_num_seqs, self.id)
        try:
            await first_of(stop, thread, publishing, taking, listening, renewing, reaping)
        finally:
            self._status = "draining"
            consumer.stop()
            await asyncio.wait([taking], timeout=STOP_TIMEOUT)
            await cancel(taking)
            await cancel(reaping)
            await self._drain()
            loop.stop()
            await engine.stopped(STOP_TIMEOUT)
            await cancel(publishing)
            await cancel(listening)
            await cancel(renewing)
            await self._hand_back(queue, publisher)

    async def _drain(self) -> None:
        """Let running jobs finish within the drain time."""
        if len(self._jobs):
            logger.info("draining: %d jobs, at most %g s", len(self._jobs), self._settings.drain_timeout)
            await self._jobs.wait_empty(self._settings.drain_timeout)

    async def _hand_back(self, queue: JobQueue, publisher: Publisher) -> None:
        """What is still unfinished goes back to the queue, with all tokens made so far in its log."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await publisher.flush(everything=True)
                for job in self._jobs:
                    with suppress(RedisError, OSError):  # then its lease runs out, and it is reaped
                        await queue.release(job.id, job.epoch)
                    self._jobs.remove(job)

    async def _leave(self) -> None:
        for leaving in (JobQueue(self._client, self._keys).leave(self.id), self._heartbeat.leave()):
            with suppress(RedisError, OSError):
                await leaving
        for client in (self._client, self._take_client):
            await client.aclose()

    def _progress(self, message: str) -> None:
        logger.info("%s", message)

    def _facts(self) -> dict[str, str | int | float]:
        num_tokens = self._loop.num_tokens if self._loop else 0
        return {
            "status": self._status,
            "slots": self._settings.max_num_seqs,
            "running": len(self._jobs),
            "steps": self._loop.num_steps if self._loop else 0,
            "generated_tokens": num_tokens,
            "tokens_per_s": round(self._rate.per_second(num_tokens), 1),
        }
