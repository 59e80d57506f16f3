"""The embedded Redis (or Valkey) of `forebay up`: private, durable, its data directory held while it runs.

Its port is never 6379 unless asked for, it listens on the loopback address only, and it ends with its process group.
"""

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cli.child import Child
from cli.ports import free_port, require_free
from cli.redis_binary import RedisBinary, find_redis
from shared.errors import RedisUnavailableError

PROGRESS_INTERVAL = 5.0
START_TIMEOUT = 15.0  # seconds without any answer; while the server says that it loads its data, it may take longer
STOP_TIMEOUT = 10.0

Say = Callable[[str], None]


def server_command(binary: RedisBinary, directory: Path, port: int) -> list[str]:
    """Arguments that make the server durable (AOF, fsync every second), unwilling to evict, and private."""
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory),
        "logfile": str(log_path(directory)),
        "daemonize": "no",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-load-truncated": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    return [str(binary.path), *(part for name, value in options.items() for part in (f"--{name}", value))]


def log_path(directory: Path) -> Path:
    return directory / "server.log"


def log_tail(directory: Path, lines: int = 5) -> str:
    """The last lines of the server's log."""
    with contextlib.suppress(OSError), log_path(directory).open(encoding="utf-8", errors="replace") as file:
        return "".join(deque(file, lines)).strip()
    return ""


def probe(port: int) -> str:
    """What the server on this port says to PING: "PONG", "LOADING", or "" for anything else or nothing."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(b"PING\r\n")
        reply = connection.recv(64)
        return "PONG" if reply.startswith(b"+PONG") else "LOADING" if reply.startswith(b"-LOADING") else ""
    return ""


@dataclass(frozen=True, slots=True)
class LocalRedis:
    """A server ready to be started."""

    binary: RedisBinary
    directory: Path
    port: int
    child: Child

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def wait_ready(self, say: Say) -> None:
        """Return when it answers; while it loads its data that may take long. Raises RedisUnavailableError."""
        deadline = said = time.monotonic()
        deadline += START_TIMEOUT
        while (answer := await asyncio.to_thread(probe, self.port)) != "PONG":
            now = time.monotonic()
            if answer == "LOADING":
                deadline = now + START_TIMEOUT
            if now > deadline:
                raise RedisUnavailableError(f"{self.binary} did not start: {log_tail(self.directory)}")
            if now - said > PROGRESS_INTERVAL:
                said = now
                say(f"Redis is {answer.lower() or 'starting'}")
            await asyncio.sleep(0.02)
        say(f"Redis: {self.binary} on port {self.port}, data in {self.directory}")


def prepare(data_dir: Path, port: int, data_lock: int, say: Say) -> LocalRedis:
    """Find the program, a port (0: a free one) and the data. Raises ForebayError if one of them is not to be had."""
    binary = find_redis(say)
    port = port or free_port()
    require_free("127.0.0.1", port, "FOREBAY_EMBEDDED_REDIS_PORT")
    directory = data_dir / binary.kind
    directory.mkdir(mode=0o700, exist_ok=True)  # it holds prompts
    _warn_of_other_data(data_dir, binary, say)
    command = server_command(binary, directory, port)
    # it inherits the lock: a server that outlives this process for a moment keeps its data to itself
    child = Child("redis", command, env={}, say=say, pass_fds=[data_lock], log=log_path(directory))
    return LocalRedis(binary, directory, port, child)


def _warn_of_other_data(data_dir: Path, binary: RedisBinary, say: Say) -> None:
    other = data_dir / {"redis": "valkey", "valkey": "redis"}[binary.kind]
    if (other / "appendonlydir").is_dir():
        say(f"jobs of earlier runs are in {other}: {binary} does not read them")
