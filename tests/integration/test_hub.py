"""The hub on a real server: one connection, and a lost message is never passed over."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from redis.asyncio import Redis

import shared.pubsub
from api.app import create_app
from api.background import BackgroundTasks
from api.hub import Hub
from api.server import Server
from api.settings import ApiSettings
from shared.errors import RedisUnavailableError
from shared.tasks import cancel
from tests.support.eventually import eventually
from tests.support.http_server import running_server
from tests.support.redis_server import RedisServer
from tests.support.scripted_worker import MODEL, ScriptedWorker
from tests.support.slow_proxy import slow_proxy
from tests.support.sse import data_of, open_stream


@pytest.fixture
async def hub(redis_url: str) -> AsyncIterator[Hub]:
    tasks = BackgroundTasks()
    hub = Hub(redis_url, buffer=3, tasks=tasks)
    running = asyncio.create_task(hub.run())
    await eventually(lambda: hub.is_connected, "the hub is connected")
    yield hub
    await tasks.close()
    await cancel(running)


async def test_what_is_published_after_subscribing_arrives(hub: Hub, redis_client: Redis) -> None:
    async with hub.subscribe(["a", "b"]) as (a, b):
        await redis_client.publish("b", "for b")
        await redis_client.publish("a", "for a")
        assert await a.wait(5)
        assert await b.wait(5)
        assert (list(a.take()), list(b.take())) == (["for a"], ["for b"])
        assert not a.is_stale


async def test_a_full_buffer_is_dropped_and_the_reader_sent_to_the_log(hub: Hub, redis_client: Redis) -> None:
    async with hub.subscribe(["a", "b"]) as (a, b):
        for number in range(4):
            await redis_client.publish("a", str(number))
        await redis_client.publish("b", "the connection has delivered all before this")
        assert await b.wait(5)
        assert a.is_stale
        assert not a.take()


async def test_leaving_unsubscribes_however_it_happens(hub: Hub, redis_client: Redis) -> None:
    async def reader() -> None:
        async with hub.subscribe(["a"]) as (subscription,):
            await subscription.wait(60)

    async def num_subscribers() -> int:
        return (await redis_client.pubsub_numsub("a"))[0][1]

    async def is_left() -> bool:
        return await num_subscribers() == 0

    task = asyncio.create_task(reader())
    await eventually(num_subscribers, "the channel is subscribed")
    task.cancel()
    await eventually(is_left, "the channel is left")
    assert hub.num_channels == 0


async def test_losing_the_connection_marks_everybody_stale_and_subscribes_again(hub: Hub, redis_client: Redis) -> None:
    async with hub.subscribe(["a"]) as (a,):
        await redis_client.client_kill_filter(_type="pubsub")
        assert await a.wait(5)
        assert a.is_stale
        a.is_stale = False

        async def is_heard() -> bool:
            return bool(await redis_client.publish("a", "again"))

        await eventually(is_heard, "the channel is subscribed again")
        assert await a.wait(5)


async def test_without_redis_subscribing_fails_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.pubsub, "CONFIRM_TIMEOUT", 0.1)
    tasks = BackgroundTasks()
    hub = Hub("redis://127.0.0.1:1/0", buffer=3, tasks=tasks)
    with pytest.raises(RedisUnavailableError):
        async with hub.subscribe(["a"]):
            pass
    await tasks.close()
    assert hub.num_channels == 0


async def test_many_streams_share_one_connection(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_client: Redis
) -> None:
    async def one() -> str:
        async with open_stream(http) as stream:
            return await stream.text()

    streams = [asyncio.create_task(one()) for _ in range(50)]
    attempts = await worker.take(50)
    assert len(await redis_client.client_list(_type="pubsub")) == 1
    for attempt in attempts:
        await attempt.emit("A")
        await attempt.finish()
    assert await asyncio.gather(*streams) == ["A"] * 50


@pytest.mark.parametrize("api_overrides", [{"watchdog_interval": 30}])
async def test_killing_the_connection_in_the_middle_loses_nothing(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_client: Redis
) -> None:
    """The watchdog is as good as off: the reconnection itself must send the streams to the log."""
    streams = [asyncio.create_task(_text(http, number)) for number in range(8)]
    attempts = await worker.take(8)
    for number in range(100):
        for attempt in attempts:
            await attempt.emit(chr(ord("a") + number % 26))
        if number % 20 == 10:
            await redis_client.client_kill_filter(_type="pubsub")
    for attempt in attempts:
        await attempt.finish()
    await redis_client.client_kill_filter(_type="pubsub")
    assert await asyncio.gather(*streams) == [attempts[0].text] * 8


async def test_an_output_buffer_limit_of_redis_loses_nothing(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_client: Redis
) -> None:
    """Redis cuts the subscriber off and drops what it had for it."""
    limit = (await redis_client.config_get("client-output-buffer-limit"))["client-output-buffer-limit"]
    await redis_client.config_set("client-output-buffer-limit", "pubsub 64kb 32kb 1")
    stream = asyncio.create_task(_text(http, 0))
    (attempt,) = await worker.take()
    for _ in range(10):
        await attempt.emit_all([attempt.next_event("x" * 2000) for _ in range(100)])
    await attempt.finish()
    assert await stream == attempt.text
    await redis_client.config_set("client-output-buffer-limit", limit)


async def test_a_slow_connection_to_redis_loses_no_first_token(
    worker: ScriptedWorker, redis_server: RedisServer
) -> None:
    async with slow_proxy(redis_server.port, delay=0.05) as port:
        settings = ApiSettings(redis_url=f"redis://127.0.0.1:{port}/0", model=MODEL, heartbeat_interval=60)
        with running_server(Server(create_app(settings), settings)) as url:
            limits = httpx.Limits(max_connections=16)
            async with (
                httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as http,
                worker.answering("A", "B", "C"),
            ):
                texts = await asyncio.gather(*(_text(http, number) for number in range(48)))
    assert texts == ["ABC"] * 48


@pytest.mark.parametrize("redis_options", [("--appendonly", "yes", "--appendfsync", "always")])
async def test_a_restart_of_redis_in_the_middle_loses_nothing(
    own_redis: RedisServer, own_http: httpx.AsyncClient, own_worker: ScriptedWorker
) -> None:
    async with open_stream(own_http) as stream:
        (attempt,) = await own_worker.take()
        await attempt.emit("A")
        await stream.next()
        await asyncio.to_thread(own_redis.stop)
        await asyncio.to_thread(own_redis.start)
        await attempt.emit("B")
        await attempt.finish()
        assert await stream.text() == "AB"


async def _text(http: httpx.AsyncClient, number: int) -> str:
    async with open_stream(http, f"prompt {number}") as stream:
        text = await stream.text()
    assert data_of(stream.seen[-1])["finish_reason"] == "stop"
    return text
