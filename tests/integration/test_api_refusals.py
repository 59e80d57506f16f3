"""What is refused: the shape of the answer, and that nothing is queued."""

import asyncio
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from shared.keys import models_key
from shared.tasks import cancel
from tests.support.eventually import eventually
from tests.support.redis_server import RedisServer
from tests.support.scripted_worker import PREFIX, ScriptedWorker
from tests.support.sse import open_stream

PATHS = ("/generate", "/generate_stream")


def check_error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The JSON shape of an error; returns what is under "error"."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    if status in (429, 503):
        assert 0 < int(response.headers["retry-after"]) <= 120
    return error


@pytest.mark.parametrize("api_overrides", [{"max_waiting_jobs": 5}])
async def test_a_full_queue_refuses_with_429_and_serves_again_later(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    streams = [asyncio.create_task(_text(http)) for _ in range(5)]

    async def is_full() -> bool:
        return await worker.num_queued() == 5

    await eventually(is_full, "five jobs are queued")
    for path in PATHS:
        error = check_error(await http.post(path, json={"prompt": "x"}), 429, "queue_full")
        assert "5 jobs are waiting, the limit is 5" in error["message"]
    assert await worker.num_queued() == 5
    async with worker.answering("A"):
        assert await asyncio.gather(*streams) == ["A"] * 5
        assert (await http.post("/generate", json={"prompt": "x"})).status_code == 200


@pytest.mark.parametrize("api_overrides", [{"max_waiting_jobs": 5}])
async def test_several_prompts_are_refused_as_a_whole(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    waiting = asyncio.create_task(http.post("/generate", json={"prompt": "first"}))
    await eventually(lambda: _has_queued(worker, 1), "one job waits")
    check_error(await http.post("/generate", json={"prompts": ["x"] * 5}), 429, "queue_full")
    assert await worker.num_queued() == 1
    assert len([key async for key in worker.client.scan_iter(match="*:job:*")]) == 1
    await cancel(waiting)


async def _has_queued(worker: ScriptedWorker, count: int) -> bool:
    return await worker.num_queued() == count


@pytest.mark.parametrize("api_overrides", [{"max_waiting_jobs": 5}])
async def test_more_prompts_than_the_queue_ever_takes_are_a_400(http: httpx.AsyncClient) -> None:
    error = check_error(await http.post("/generate", json={"prompts": ["x"] * 6}), 400, "invalid_request")
    assert error["param"] == "prompts"


@pytest.mark.parametrize("api_overrides", [{"max_prompts": 3}])
async def test_too_many_prompts_are_refused_with_the_limit(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    error = check_error(await http.post("/generate", json={"prompts": ["x"] * 4}), 400, "invalid_request")
    assert error["param"] == "prompts"
    assert "4 prompts, the limit is 3" in error["message"]


async def test_an_unknown_model_is_a_404_while_others_are_served(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    for path in PATHS:
        error = check_error(await http.post(path, json={"prompt": "x", "model": "no-such"}), 404, "model_not_found")
        assert error["param"] == "model"
    assert await worker.num_queued() == 0


@pytest.mark.parametrize("model", [None, "test-model", "whatever"])
async def test_without_a_worker_requests_get_503(http: httpx.AsyncClient, model: str | None) -> None:
    for path in PATHS:
        check_error(await http.post(path, json={"prompt": "x", "model": model}), 503, "no_worker")


async def test_a_worker_that_went_silent_serves_nothing(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    await worker.announce(age=10_000)
    check_error(await http.post("/generate", json={"prompt": "x"}), 503, "no_worker")


async def test_a_model_whose_worker_is_gone_gets_503_not_404(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    await ScriptedWorker(worker.client, model="other").announce(age=10_000)
    check_error(await http.post("/generate", json={"prompt": "x", "model": "other"}), 503, "no_worker")


async def test_the_only_live_model_is_the_default(http: httpx.AsyncClient, redis_client: Redis) -> None:
    other = ScriptedWorker(redis_client, model="other")
    await other.announce()
    async with other.answering("A"):
        assert (await http.post("/generate", json={"prompt": "x"})).json()["model"] == "other"


async def test_with_several_models_and_no_default_one_must_be_named(
    http: httpx.AsyncClient, redis_client: Redis
) -> None:
    for model in ("other", "another"):
        await ScriptedWorker(redis_client, model=model).announce()
    error = check_error(await http.post("/generate", json={"prompt": "x"}), 400, "invalid_request")
    assert error["param"] == "model"
    assert "another, other" in error["message"]


async def test_a_card_or_tokenizer_that_cannot_be_read_is_a_503(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_client: Redis
) -> None:
    async for key in redis_client.scan_iter(match=f"{PREFIX}:tokenizer:*"):
        await redis_client.set(key, "no tokenizer", ex=60)
    check_error(await http.post("/generate", json={"prompt": "x"}), 503, "model_unavailable")
    async for key in redis_client.scan_iter(match=f"{PREFIX}:tokenizer:*"):
        await redis_client.delete(key)
    check_error(await http.post("/generate", json={"prompt": "x"}), 503, "model_unavailable")
    await worker.announce()
    async with worker.answering("A"):
        assert (await http.post("/generate", json={"prompt": "x"})).status_code == 200
    await redis_client.hset(models_key(PREFIX), "test-model", '{"from": "another version"}')
    await eventually(lambda: _has_status(http, "/health/ready", 503), "the card is read again")


@pytest.mark.parametrize("api_overrides", [{"max_body_size": 2000}])
async def test_a_body_over_the_limit_is_a_413(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async def in_pieces() -> Any:
        for _ in range(10):
            yield b'{"prompt": "' + b"x" * 300

    for path in PATHS:
        for content in (b"x" * 2001, in_pieces()):
            error = check_error(await http.post(path, content=content), 413, "content_too_large")
            assert "2000 bytes" in error["message"]
    assert (await http.get("/health/live")).status_code == 200
    assert await worker.num_queued() == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/no-such-route", 404, "not_found"),
        ("GET", "/generate", 405, "method_not_allowed"),
        ("PUT", "/jobs/x", 405, "method_not_allowed"),
    ],
)
async def test_unknown_routes_and_methods_have_the_error_shape(
    http: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    response = await http.request(method, path)
    check_error(response, status, code)
    assert status != 405 or response.headers["allow"]


@pytest.mark.parametrize("given", ["abc-123", "x" * 500, "\u00ff", "a b", ""])
async def test_every_response_has_a_request_id(http: httpx.AsyncClient, worker: ScriptedWorker, given: str) -> None:
    headers = {"x-request-id": given.encode("latin-1")}
    for response in (
        await http.get("/health/live", headers=headers),
        await http.post("/generate", content=b"{", headers=headers),
        await http.get("/no-such-route", headers=headers),
    ):
        echoed = response.headers["x-request-id"]
        assert echoed == given if given == "abc-123" else len(echoed) == 32


async def test_a_hanging_redis_gives_503_not_a_hang_and_the_service_recovers(
    own_http: httpx.AsyncClient, own_worker: ScriptedWorker, own_redis: RedisServer
) -> None:
    async with own_worker.answering("A"):
        assert (await own_http.post("/generate", json={"prompt": "x"})).status_code == 200
    with own_redis.paused():
        await eventually(lambda: _has_status(own_http, "/health/ready", 503), "readiness is false")
        requests = own_http.post("/generate", json={"prompt": "x"}), own_http.get("/jobs/" + "0" * 32)
        for response in await asyncio.gather(*requests):
            check_error(response, 503, "redis_unavailable")
        assert (await own_http.get("/health/live")).status_code == 200
    await _recovers(own_http, own_worker)


async def test_a_dead_redis_gives_503_and_the_service_recovers(
    own_http: httpx.AsyncClient, own_worker: ScriptedWorker, own_redis: RedisServer
) -> None:
    own_redis.stop()
    await eventually(lambda: _has_status(own_http, "/health/ready", 503), "readiness is false")
    check_error(await own_http.post("/generate", json={"prompt": "x"}), 503, "redis_unavailable")
    own_redis.start()
    await own_worker.announce()
    await _recovers(own_http, own_worker)


async def _recovers(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    await eventually(lambda: _has_status(http, "/health/ready", 200), "the service is ready again")
    async with worker.answering("A"):
        assert (await http.post("/generate", json={"prompt": "x"})).json()["text"] == "A"
        assert await _text(http) == "A"


async def _has_status(http: httpx.AsyncClient, path: str, status: int) -> bool:
    return (await http.get(path)).status_code == status


async def _text(http: httpx.AsyncClient) -> str:
    async with open_stream(http) as stream:
        return await stream.text()
