"""Work that must not delay an answer, nor die with the request that asked for it."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 6.0  # s: longer than one Redis command may take


class BackgroundTasks:
    """Keeps the tasks of a process alive until they are done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` soon; its errors are logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def close(self) -> None:
        """Let running work end, for a bounded time."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
            for task in late:
                task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("background work failed", exc_info=error)
