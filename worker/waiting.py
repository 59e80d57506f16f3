"""Waiting for one of several parts of a process."""

import asyncio
from typing import Any

from shared.tasks import cancel


async def first_of(stop: asyncio.Event, *parts: "asyncio.Future[Any]") -> None:
    """Return when `stop` is set or one of the parts has ended; raise what that one raised."""
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopping, *parts], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(stopping)
    for part in done - {stopping}:
        part.result()
