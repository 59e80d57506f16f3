"""One `forebay up` on one data directory: two Redis servers on one log would destroy it."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from shared.errors import ForebayError, SettingsError

PATIENCE = 1.0  # seconds; the processes of a run that was killed a moment ago are still ending


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[int]:
    """Hold the directory's lock and yield its file descriptor. A child that inherits it holds the lock as well.

    Raises SettingsError if the directory cannot be made or written, ForebayError if somebody else holds the lock.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        fd = os.open(data_dir / "up.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise SettingsError(f"FOREBAY_DATA_DIR={str(data_dir)!r} cannot be used: {error.strerror}") from None
    try:
        _acquire(fd, data_dir)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield fd
    finally:
        os.close(fd)


def _acquire(fd: int, data_dir: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                pid = os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
                raise ForebayError(
                    f"another `forebay up` (pid {pid}) runs on {data_dir}; set FOREBAY_DATA_DIR"
                ) from None
            time.sleep(0.05)
