"""Fixtures of all tests. Everything that uses Redis asks for `redis_url` (or for what is built on it), gets an empty
server and runs against both Redis and Valkey."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from redis.asyncio import Redis

from shared.redis import connect
from tests.support.redis_server import SERVERS, RedisServer, keys_without_ttl

hypothesis_settings.register_profile("forebay", deadline=None)  # no test asserts a time
hypothesis_settings.load_profile("forebay")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the developer's environment nor a .env file changes what a test sees."""
    for name in list(os.environ):
        if name.startswith("FOREBAY_") or name == "REDIS_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session", params=SERVERS)
def redis_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The server of this test session; tests must leave it running."""
    server = RedisServer(request.param, tmp_path_factory.mktemp(request.param))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """URL of an empty Redis. Fails the test if it leaves keys without TTL other than the job streams."""
    with redis_server.client() as client:
        client.flushall()
        client.config_resetstat()
        yield redis_server.url
        leaks = keys_without_ttl(client)
    assert not leaks, f"keys without TTL: {leaks}"


@pytest.fixture
async def redis_client(redis_url: str) -> AsyncIterator[Redis]:
    """A client of the empty Redis."""
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def start_redis(redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts further servers of the same kind, which the test may pause, kill and start again."""
    servers: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        directory = tmp_path / f"redis-{len(servers)}"
        directory.mkdir()
        servers.append(RedisServer(redis_server.kind, directory, *options))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
