"""Waiting for a state instead of sleeping. The deadline only bounds a test that fails."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

DEADLINE = 20.0  # s
INTERVAL = 0.01  # s


async def eventually(
    predicate: Callable[[], Any | Awaitable[Any]], description: str, *, deadline: float = DEADLINE
) -> Any:
    """Wait until `predicate` (sync or async) is truthy and return what it gave; fail with `description` otherwise."""
    give_up_at = time.monotonic() + deadline
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > give_up_at:
            raise AssertionError(f"did not happen within {deadline:g} s: {description}")
        await asyncio.sleep(INTERVAL)


def eventually_sync(predicate: Callable[[], Any], description: str, *, deadline: float = DEADLINE) -> Any:
    """The same for tests without an event loop."""
    give_up_at = time.monotonic() + deadline
    while not (value := predicate()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"did not happen within {deadline:g} s: {description}")
        time.sleep(INTERVAL)
    return value
