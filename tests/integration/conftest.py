"""An API process (in a thread) and a scripted worker, both on a real Redis."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from api.app import create_app
from api.server import Server
from api.settings import ApiSettings
from shared.redis import connect
from tests.support.http_server import running_server
from tests.support.redis_server import RedisServer
from tests.support.scripted_worker import MODEL, ScriptedWorker


@pytest.fixture
def api_overrides() -> dict[str, Any]:
    """Settings that a test changes: @pytest.mark.parametrize("api_overrides", [{...}])."""
    return {}


@pytest.fixture
def api_settings(redis_url: str, api_overrides: dict[str, Any]) -> ApiSettings:
    """heartbeat_interval is long: a scripted worker does not go stale while a test runs."""
    return _settings(redis_url, api_overrides)


def _settings(url: str, overrides: dict[str, Any]) -> ApiSettings:
    settings = {"redis_url": url, "model": MODEL, "heartbeat_interval": 60, "watchdog_interval": 0.2}
    return ApiSettings(**settings | overrides)


@pytest.fixture
def api_url(api_settings: ApiSettings) -> Iterator[str]:
    """A running API."""
    with running_server(Server(create_app(api_settings), api_settings)) as url:
        yield url


@pytest.fixture
async def http(api_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with httpx.AsyncClient(base_url=api_url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
async def worker(redis_client: Redis) -> ScriptedWorker:
    """A live worker of the default model."""
    worker = ScriptedWorker(redis_client)
    await worker.announce()
    return worker


@pytest.fixture
def redis_options() -> tuple[str, ...]:
    """Options of `own_redis`."""
    return ()


@pytest.fixture
def own_redis(start_redis: Callable[..., RedisServer], redis_options: tuple[str, ...]) -> RedisServer:
    """A server that the test may pause, stop and start."""
    return start_redis(*redis_options)


@pytest.fixture
async def own_worker(own_redis: RedisServer) -> AsyncIterator[ScriptedWorker]:
    """A live worker on it, which repeats a command if its connection was lost."""
    client = connect(own_redis.url, retries=1)
    worker = ScriptedWorker(client)
    await worker.announce()
    yield worker
    await client.aclose()


@pytest.fixture
async def own_http(own_redis: RedisServer, api_overrides: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API on it."""
    settings = _settings(own_redis.url, api_overrides)
    with running_server(Server(create_app(settings), settings)) as url:
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            yield client
