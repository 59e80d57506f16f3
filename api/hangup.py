"""Notices that a client has hung up while its answer is being made."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request

from api.errors import ClientGoneError

T = TypeVar("T")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`. Raises ClientGoneError, and stops the work, as soon as the client hangs up."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError("the client hung up")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
