"""The composition root: everything one API process is made of."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from redis.asyncio import Redis

from api.admission import Admission
from api.background import BackgroundTasks
from api.catalog import Catalog
from api.hub import Hub
from api.jobs import Jobs
from api.settings import ApiSettings
from api.tokenizer import Tokenizers
from shared.errors import SettingsError
from shared.redis import connect
from shared.tasks import cancel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes use."""

    settings: ApiSettings
    catalog: Catalog
    admission: Admission
    jobs: Jobs
    hub: Hub


def connect_redis(settings: ApiSettings) -> Redis:
    """A client for the API; all its commands may run twice. Raises SettingsError, does not touch the network."""
    if settings.redis_url is None:
        raise SettingsError("FOREBAY_REDIS_URL is not set")
    return connect(settings.redis_url, retries=1, retry_on_timeout=False)


@asynccontextmanager
async def open_services(settings: ApiSettings) -> AsyncIterator[Services]:
    """Build all parts; Redis may still be away. Closes them at the end."""
    client = connect_redis(settings)
    tasks = BackgroundTasks()
    hub = Hub(str(settings.redis_url), buffer=settings.subscriber_buffer, tasks=tasks)
    listening = asyncio.create_task(hub.run())
    listening.add_done_callback(_report)
    try:
        yield _assemble(settings, client, hub, tasks)
    finally:
        await tasks.close()
        await cancel(listening)
        await client.aclose()


def _report(listening: asyncio.Task[None]) -> None:
    """The hub never ends by itself; if it does, this process stays unready, and the log must say why."""
    if not listening.cancelled():
        logger.critical("the hub has ended", exc_info=listening.exception())


def _assemble(settings: ApiSettings, client: Redis, hub: Hub, tasks: BackgroundTasks) -> Services:
    catalog = Catalog(
        client,
        prefix=settings.key_prefix,
        default_name=settings.model_name,
        worker_timeout=settings.worker_timeout,
    )
    admission = Admission(settings, catalog, Tokenizers(client, prefix=settings.key_prefix))
    return Services(settings, catalog, admission, Jobs(client, settings, catalog, hub, tasks), hub)


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]
