"""Rates for heartbeats."""

import time


class Rate:
    """Growth of a counter per second, between two looks at it."""

    def __init__(self) -> None:
        self._count = 0
        self._time = time.monotonic()

    def per_second(self, count: int) -> float:
        now = time.monotonic()
        rate = (count - self._count) / max(now - self._time, 1e-3)
        self._count, self._time = count, now
        return rate
