"""The processes of `forebay up`: started in order (Redis, model, API and workers), stopped in the reverse order."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from api.settings import ApiSettings
from cli.child import Child
from cli.embedded_redis import STOP_TIMEOUT, prepare
from cli.ports import free_port, require_free
from cli.readiness import is_ready, reachable_url
from cli.redis_url import check_url
from cli.supervisor import Supervisor
from cli.up_settings import UpSettings
from cli.worker_check import worker_states
from shared.errors import ForebayError
from shared.redis import mask_password
from worker.settings import WorkerSettings

PROGRESS_INTERVAL = 5.0
POLL_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class StackSettings:
    """The settings of all that runs. `data_lock` is the descriptor that holds the data directory."""

    up: UpSettings
    api: ApiSettings
    worker: WorkerSettings
    data_dir: Path
    data_lock: int


class LocalStack:
    """`start` returns when requests are served; `stop` when every process has ended."""

    def __init__(self, settings: StackSettings, supervisor: Supervisor, say: Callable[[str], None]) -> None:
        self._settings, self._supervisor, self._say = settings, supervisor, say
        self._redis: Child | None = None
        self._redis_url = settings.up.redis_url or ""
        self._api: Child | None = None
        self._others: list[Child] = []  # workers, and the fetching of the model
        self.url = ""

    async def start(self) -> None:
        """Raises ForebayError if something cannot be started."""
        settings, host = self._settings, self._settings.api.host
        require_free(host, settings.api.port, "FOREBAY_PORT")
        port = settings.api.port or free_port(host)
        self.url = reachable_url(host, port)
        await self._find_redis()
        await self._fetch_model()
        self._api = self._forebay("api", "api", {"FOREBAY_PORT": str(port), "FOREBAY_HOST": host})
        self._supervisor.keep(self._api)
        for number in range(1, settings.up.up_workers + 1):
            worker = self._forebay(f"worker-{number}", "worker")
            self._others.append(worker)
            self._supervisor.keep(worker)
        await self._wait_ready()

    async def stop(self) -> None:
        """The API first: its open streams may end while workers still run. Then the workers, and Redis last."""
        settings = self._settings
        if self._api:
            await self._supervisor.stop([self._api], settings.api.shutdown_grace + 5)
        await self._supervisor.stop(self._others, settings.worker.drain_timeout + 10)
        if self._redis:
            await self._supervisor.stop([self._redis], STOP_TIMEOUT)

    def hurry(self) -> None:
        """Make a running `stop` end at once; only Redis is still asked to save."""
        self._supervisor.kill([child for child in (self._api, *self._others) if child])

    def try_lines(self) -> list[str]:
        """What to type now."""
        head = "-H 'Content-Type: application/json'"
        body = """-d '{"prompt": "The capital of France is", "max_tokens": 24}'"""
        client = "redis-cli" if shutil.which("redis-cli") or not shutil.which("valkey-cli") else "valkey-cli"
        return [
            f"curl {self.url}/generate {head} {body}",
            f"curl -N {self.url}/generate_stream {head} {body}",
            f"{client} -u {mask_password(self._redis_url)} --scan   (look inside)",
        ]

    async def _find_redis(self) -> None:
        settings = self._settings
        if settings.up.redis_url:
            await asyncio.to_thread(check_url, settings.up.redis_url)
            return
        local = await asyncio.to_thread(
            prepare, settings.data_dir, settings.up.embedded_redis_port, settings.data_lock, self._say
        )
        self._redis, self._redis_url = local.child, local.url
        self._supervisor.keep(local.child)
        await local.wait_ready(self._say)

    async def _fetch_model(self) -> None:
        worker = self._settings.worker
        if worker.engine != "transformers":
            return
        fetch = self._forebay("model", "models", arguments=["fetch"])
        self._others.append(fetch)
        await self._supervisor.run_once(fetch)

    async def _wait_ready(self) -> None:
        started = said = time.monotonic()
        while True:
            ready, reason = await asyncio.to_thread(self._is_serving)
            if ready:
                self._supervisor.started_up = True
                return
            now = time.monotonic()
            if now - said > PROGRESS_INTERVAL:
                said = now
                self._say(f"starting ({now - started:.0f} s): {reason}")
            await asyncio.sleep(POLL_INTERVAL)

    def _is_serving(self) -> tuple[bool, str]:
        ready, reason = is_ready(self.url)
        if not ready:
            return False, reason
        # just after a restart the API may still count the worker of the last run as alive
        try:
            states = worker_states(self._settings.worker, self._redis_url)
        except ForebayError as error:
            return False, str(error)
        return any(states.get(child.pid) == "ready" for child in self._others), "the model is loading"

    def _forebay(
        self, name: str, command: str, env: Mapping[str, str] | None = None, arguments: list[str] | None = None
    ) -> Child:
        # -P: a folder named `api` or `shared` where the user stands must not be taken for ours
        argv = [sys.executable, "-P", "-m", "cli", command, *(arguments or ())]
        common = {
            "FOREBAY_REDIS_URL": self._redis_url,
            "FOREBAY_MODEL": self._settings.worker.model,
            "FOREBAY_DATA_DIR": str(self._settings.data_dir),
        }
        return Child(name, argv, env=common | dict(env or {}), say=self._say)
