"""The thread that an engine lives in."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shared.errors import ForebayError
from worker.engines.base import Engine
from worker.loop import EngineLoop
from worker.waiting import first_of


class EngineThread:
    """One daemon thread that loads the engine and then runs its loop: an engine is only ever touched by one thread.
    A daemon, so that a worker told to stop while it loads need not wait for the end of that."""

    def __init__(self, load: Callable[[Callable[[str], None]], Engine], progress: Callable[[str], None]) -> None:
        self._load = load
        self._progress = progress
        self._event_loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[Engine] = self._event_loop.create_future()
        self._ended: asyncio.Future[None] = self._event_loop.create_future()
        self._loop: EngineLoop | None = None
        self._may_run = threading.Event()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> Engine:
        return self._loaded.result()

    async def loaded(self, stop: asyncio.Event) -> bool:
        """Wait for the engine; False if `stop` came first. Raises what loading raised."""
        await first_of(stop, self._loaded)
        return self._loaded.done()

    async def run(self, loop: EngineLoop) -> None:
        """Run the loop until it is stopped. Raises what it raised."""
        self._loop = loop
        self._may_run.set()
        await asyncio.shield(self._ended)

    async def stopped(self, timeout: float) -> None:
        """Wait at most `timeout` s for the loop to end."""
        await asyncio.wait([self._ended], timeout=timeout)

    def _main(self) -> None:
        try:
            engine = self._load(self._progress)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            return self._tell(self._loaded, error)
        self._tell(self._loaded, engine)
        self._may_run.wait()
        try:
            if self._loop is not None:
                self._loop.run()
            engine.close()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            return self._tell(self._ended, error)
        self._tell(self._ended, None)

    def _tell(self, future: "asyncio.Future[Any]", result: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self._event_loop.call_soon_threadsafe(_resolve, future, result)


def _resolve(future: "asyncio.Future[Any]", result: object) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result if isinstance(result, Exception) else ForebayError(repr(result)))
    else:
        future.set_result(result)
