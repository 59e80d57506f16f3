"""Long steps at start say that they go on."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str], None]


@contextmanager
def ticking(progress: Progress, text: str, interval: float = 5.0) -> Iterator[None]:
    """Report `text` now and, with the seconds since, every `interval` until the block is left."""
    progress(text)
    done = threading.Event()
    thread = threading.Thread(target=_tick, args=(progress, text, interval, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _tick(progress: Progress, text: str, interval: float, done: threading.Event) -> None:
    started = time.monotonic()
    while not done.wait(interval):
        progress(f"{text}: {time.monotonic() - started:.0f} s")
