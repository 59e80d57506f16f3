"""Connections at the moment in which they are lost."""

from typing import Any

import pytest
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from shared.pubsub import Subscriber
from shared.redis import connect, subscriber_connection


@pytest.fixture
def subscriber() -> Subscriber:
    return Subscriber("redis://unused", on_message=lambda _channel, _message: None, on_gap=lambda: None)


async def test_a_lost_connection_is_not_connected_again_by_a_writer(redis_url: str, subscriber: Subscriber) -> None:
    """Nobody would read from it: Redis would buffer messages for it without end."""
    connection = subscriber_connection(redis_url)
    await connection.connect()
    await connection.disconnect(nowait=True)
    with pytest.raises(RedisConnectionError):
        await subscriber._write(connection, "SUBSCRIBE", "channel")
    assert not connection.is_connected


async def test_a_connection_that_its_reader_drops_while_a_command_is_sent(
    redis_url: str, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by `make chaos`: clients got status 500."""
    send = Connection._send_packed_command

    async def drop_first(self: Connection, command: Any) -> None:
        await self.disconnect(nowait=True)
        await send(self, command)

    connection = subscriber_connection(redis_url)
    await connection.connect()
    monkeypatch.setattr(Connection, "_send_packed_command", drop_first)
    with pytest.raises(RedisConnectionError):
        await subscriber._write(connection, "SUBSCRIBE", "channel")


async def test_a_command_on_a_transport_that_uvloop_has_closed(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by `make chaos`: a job's client got status 500."""
    send, failures = Connection._send_packed_command, ["the handler is closed"]

    async def fail_first(self: Connection, command: Any) -> None:
        if failures:
            raise RuntimeError(failures.pop())
        await send(self, command)

    monkeypatch.setattr(Connection, "_send_packed_command", fail_first)
    async with connect(redis_url) as client:
        with pytest.raises(RedisConnectionError):
            await client.ping()
    failures.append("once more")
    async with connect(redis_url, retries=1) as client:
        assert await client.ping()
