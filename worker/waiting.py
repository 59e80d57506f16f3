"""Waiting for one of several parts of a process, and taking them down."""

import asyncio
from typing import Any

CANCEL_INTERVAL = 1.0  # s


async def first_of(stop: asyncio.Event, *parts: "asyncio.Future[Any]") -> None:
    """Return when `stop` is set or one of the parts has ended; raise what that one raised."""
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopping, *parts], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(stopping)
    for part in done - {stopping}:
        part.result()


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait until it is gone. What it raised was seen elsewhere."""
    while not task.done():
        task.cancel()  # again, if a library swallowed the first
        await asyncio.wait([task], timeout=CANCEL_INTERVAL)
    if not task.cancelled():
        task.exception()
