"""Ending asyncio tasks."""

import asyncio
from typing import Any

CANCEL_INTERVAL = 0.1  # s


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Cancel a task until it has ended; what it raised was seen elsewhere. Once is not enough: redis-py sends with
    asyncio.wait_for, which in Python 3.11 swallows a cancellation that arrives when the sending has just been done."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_INTERVAL)
    if not task.cancelled():
        task.exception()
