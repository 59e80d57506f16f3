"""Entry point of a worker process: logging, signals, exit code."""

import asyncio
import logging
import os
import signal
import sys

from shared.errors import ForebayError, SettingsError
from shared.logging import configure_logging
from shared.settings import load_settings
from worker.engines import load_engine
from worker.settings import WorkerSettings
from worker.worker import Worker

logger = logging.getLogger(__name__)


def run(settings: WorkerSettings) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 0 after a clean stop, 1 after a failure."""
    if settings.redis_url is None:
        raise SettingsError("FOREBAY_REDIS_URL is not set: a worker needs a Redis (or use `forebay up`)")
    configure_logging(settings)
    try:
        asyncio.run(_serve(settings, settings.redis_url))
    except ForebayError as error:
        logger.error("%s", error)
        return 1
    return 0


async def _serve(settings: WorkerSettings, redis_url: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    worker = Worker(settings, redis_url, lambda progress: load_engine(settings, progress))
    await worker.run(stop)


def main() -> None:
    """`python -m worker`. The engine thread may still be loading: leave without waiting for it."""
    try:
        code = run(load_settings(WorkerSettings))
    except SettingsError as error:
        print(f"forebay: {error}", file=sys.stderr)
        code = 2
    logging.shutdown()
    os._exit(code)
