"""Carries out the faults of a plan."""

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from shared.keys import GROUP, JOB_CLASSES, QueueKeys
from tests.chaos.aof import cut_tail
from tests.chaos.history import Fault
from tests.chaos.plan import PlannedFault
from tests.chaos.processes import LEASE, Cluster, Supervised
from tests.support.jobs import MODEL

KEYS = QueueKeys("forebay", MODEL)
LONG_STOP = 6.0  # s: longer than the patience of any command


class Faults:
    """One fault at a time for Redis and for each process: one that comes while its victim still suffers is left out.
    What was broken works again when `inject` returns."""

    def __init__(self, cluster: Cluster) -> None:
        self.history: list[Fault] = []
        self._cluster = cluster
        self._redis_lock = asyncio.Lock()
        self._locks = {process.name: asyncio.Lock() for process in (*cluster.apis, *cluster.workers)}

    async def inject(self, planned: PlannedFault) -> None:
        """Do one fault, and note it."""
        if planned.kind.startswith(("worker_", "api_")):
            processes = self._cluster.workers if planned.kind.startswith("worker_") else self._cluster.apis
            await self._hit_process(planned, processes)
        elif not self._redis_lock.locked():
            async with self._redis_lock, self._noted(planned.kind, "redis"):
                await getattr(self, f"_{planned.kind}")(planned)

    @asynccontextmanager
    async def _noted(self, kind: str, victim: str) -> AsyncIterator[None]:
        fault = Fault(kind, victim, time.monotonic())
        fault.end = float("inf")
        self.history.append(fault)
        try:
            yield
        finally:
            fault.end = time.monotonic()

    async def _hit_process(self, planned: PlannedFault, processes: Sequence[Supervised]) -> None:
        victim = processes[int(planned.pick * len(processes))]
        if self._locks[victim.name].locked():
            return
        async with self._locks[victim.name], self._noted(planned.kind, victim.name):
            match planned.kind:
                case "worker_stop":
                    victim.send(signal.SIGSTOP)
                    await asyncio.sleep(LEASE * (1.2 + 2 * planned.extent))
                    victim.send(signal.SIGCONT)
                case "worker_kill" | "api_kill":
                    await _end(victim, signal.SIGKILL)
                case _:
                    await _end(victim, signal.SIGTERM)

    async def _kill_pubsub(self, _planned: PlannedFault) -> None:
        await self._call("CLIENT", "KILL", "TYPE", "pubsub")

    async def _kill_normal(self, _planned: PlannedFault) -> None:
        await self._call("CLIENT", "KILL", "TYPE", "normal")

    async def _kill_one_connection(self, planned: PlannedFault) -> None:
        async with self._client() as client:
            connections = await client.client_list()
            victim = connections[int(planned.pick * len(connections))]
            await client.client_kill_filter(_id=victim["id"], skipme=True)

    async def _debug_sleep(self, planned: PlannedFault) -> None:
        await self._call("DEBUG", "SLEEP", LEASE * (1.1 + planned.extent))

    async def _pause_write(self, planned: PlannedFault) -> None:
        seconds = LEASE * (0.5 + 1.5 * planned.extent)
        await self._call("CLIENT", "PAUSE", round(seconds * 1000), "WRITE")
        await asyncio.sleep(seconds)

    async def _script_flush(self, _planned: PlannedFault) -> None:
        await self._call("SCRIPT", "FLUSH")

    async def _redis_kill(self, planned: PlannedFault) -> None:
        await self._cluster.kill_redis()
        await asyncio.sleep(planned.extent)
        await self._cluster.start_redis()

    async def _redis_stop(self, planned: PlannedFault) -> None:
        with self._cluster.redis.paused():
            await asyncio.sleep(LEASE * (0.3 + 2 * planned.extent))

    async def _redis_long_stop(self, planned: PlannedFault) -> None:
        with self._cluster.redis.paused():
            await asyncio.sleep(LONG_STOP + 2 * planned.extent)

    async def _group_destroy(self, planned: PlannedFault) -> None:
        async with self._client() as client:
            stream = KEYS.jobs(JOB_CLASSES[int(planned.pick * 3)])  # nothing is of the class `batch` yet
            if await client.exists(stream):
                await client.xgroup_destroy(stream, GROUP)

    async def _flushall(self, _planned: PlannedFault) -> None:
        await self._call("FLUSHALL")

    async def _redis_restart_empty(self, planned: PlannedFault) -> None:
        await self._cluster.kill_redis()
        shutil.rmtree(self._cluster.data / "appendonlydir")
        await asyncio.sleep(planned.extent)
        await self._cluster.start_redis()

    async def _redis_lost_tail(self, planned: PlannedFault) -> None:
        await self._cluster.kill_redis()
        cut_tail(self._cluster.data / "appendonlydir", share=0.2 * planned.extent)
        await self._cluster.start_redis()

    async def _call(self, *command: str | int | float) -> None:
        async with self._client() as client:
            await client.execute_command(*command)  # type: ignore[no-untyped-call]

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Redis]:
        async with Redis(port=self._cluster.redis.port, decode_responses=True, socket_timeout=30) as client:
            yield client


async def _end(victim: Supervised, number: int) -> None:
    ended = asyncio.create_task(victim.restarted())
    await asyncio.sleep(0)  # it has noted whom it waits for
    victim.send(number)
    await ended
