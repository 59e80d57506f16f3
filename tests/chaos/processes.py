"""The system under test: one Redis, some APIs and workers as real processes, each started again as soon as it ends."""

import asyncio
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Self

import httpx

from shared.tasks import cancel
from tests.support.eventually import eventually
from tests.support.forebay_process import environment
from tests.support.jobs import MODEL
from tests.support.redis_server import RedisServer, die_with_parent, free_port

NUM_APIS, NUM_WORKERS = 2, 3
LEASE = 1.0  # s
STARTUP_TIME = 5.0  # s
POISONED = 70  # exit code of the fake engine's `exit_at`
EXPECTED_EXITS = {"api": {0, -signal.SIGKILL}, "worker": {0, -signal.SIGKILL, POISONED}}
SETTINGS = {
    "FOREBAY_ENGINE": "fake",
    "FOREBAY_MODEL": MODEL,
    "FOREBAY_LEASE": str(LEASE),
    "FOREBAY_HEARTBEAT_INTERVAL": "0.5",
    "FOREBAY_MAX_NUM_SEQS": "16",
    "FOREBAY_MAX_WAITING_JOBS": "300",
    "FOREBAY_DRAIN_TIMEOUT": "0.5",
    "FOREBAY_SHUTDOWN_GRACE": "0.5",
    "FOREBAY_RESULT_TTL": "36000",
}
REDIS_OPTIONS = ("--appendonly", "yes", "--appendfsync", "everysec", "--enable-debug-command", "local")


class Supervised:
    """One process; `name` is a role and a number."""

    def __init__(self, role: str, number: int, *, directory: Path, settings: dict[str, str]) -> None:
        self.name = f"{role}{number}"
        self.exits: list[tuple[int, float]] = []  # exit code, and s that the process has lived
        self.log = directory / f"{self.name}.log"
        self._role = role
        self._settings = settings
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None

    @property
    def crashes(self) -> list[str]:
        """Exits that nobody has caused, and tracebacks in the log."""
        wrong = [
            code for code, age in self.exits if code not in EXPECTED_EXITS[self._role] and not _is_young(code, age)
        ]
        tracebacks = self.log.read_text(errors="replace").count("Traceback") if self.log.exists() else 0
        problems = [f"{self.name} ended with {code}" for code in wrong]
        return problems + ([f"{tracebacks} tracebacks in {self.log}"] if tracebacks else [])

    def send(self, number: int) -> None:
        """Send a signal; nothing happens to a process that has just ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def restarted(self) -> None:
        """Wait until the process that runs now has a successor."""
        process = self._process
        await eventually(lambda: self._process is not process, f"{self.name} starts again", deadline=60)

    async def run(self) -> None:
        """Keep it running until cancelled."""
        try:
            while True:
                start = time.monotonic()
                await self._start()
                assert self._process is not None
                self.exits.append((await self._process.wait(), time.monotonic() - start))
        finally:
            await self._kill()

    async def _start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", self._role),
                env=environment(**self._settings),
                cwd=self._directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    async def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Cluster:
    """All processes, running inside `async with`."""

    def __init__(self, directory: Path, *, redis_kind: str, source: Path | None = None) -> None:
        """`source`: where api, worker and shared lie, if not here."""
        data = directory / "redis"
        data.mkdir()
        self.data = data
        self.redis = RedisServer(redis_kind, data, *REDIS_OPTIONS)
        settings = SETTINGS | {"FOREBAY_REDIS_URL": self.redis.url, "FOREBAY_DATA_DIR": str(directory)}
        if source is not None:
            settings["PYTHONPATH"] = str(source)
        ports = [free_port() for _ in range(NUM_APIS)]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.apis = [
            Supervised("api", number, directory=directory, settings=settings | {"FOREBAY_PORT": str(port)})
            for number, port in enumerate(ports)
        ]
        self.workers = [
            Supervised("worker", number, directory=directory, settings=settings) for number in range(NUM_WORKERS)
        ]
        self._redis_thread = ThreadPoolExecutor(1)  # a server dies with the thread that started it
        self._exit = AsyncExitStack()

    @property
    def crashes(self) -> list[str]:
        return [crash for process in (*self.apis, *self.workers) for crash in process.crashes]

    async def start_redis(self) -> None:
        """Return when it answers, its data loaded."""
        await asyncio.get_running_loop().run_in_executor(self._redis_thread, self.redis.start)

    async def kill_redis(self) -> None:
        """SIGKILL."""
        await asyncio.get_running_loop().run_in_executor(self._redis_thread, self.redis.stop)

    async def ready(self) -> None:
        """Wait until every API serves."""
        async with httpx.AsyncClient(trust_env=False) as client:
            for url in self.urls:
                await eventually(partial(_is_ready, client, url), f"{url} is ready", deadline=60)

    async def __aenter__(self) -> Self:
        self._exit.callback(self._redis_thread.shutdown)
        await self.start_redis()
        self._exit.push_async_callback(self.kill_redis)
        for process in (*self.apis, *self.workers):
            task = asyncio.create_task(process.run(), name=process.name)
            self._exit.push_async_callback(cancel, task)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._exit.aclose()


def _is_young(code: int, age: float) -> bool:
    """Whether a SIGTERM came before the process listened to signals."""
    return code == -signal.SIGTERM and age < STARTUP_TIME


async def _is_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health/ready")).status_code == 200
    except httpx.TransportError:
        return False
