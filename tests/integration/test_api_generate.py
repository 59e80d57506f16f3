"""POST /generate: answers, order, what reaches the worker, hang-ups."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.support.eventually import eventually
from tests.support.scripted_worker import CONTEXT, Attempt, ScriptedWorker


async def test_a_prompt_gets_its_text(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with worker.answering("A", "B", reason="stop"):
        response = await http.post("/generate", json={"prompt": "hello"})
    assert response.status_code == 200
    body = response.json()
    assert body["text"] == "AB"
    assert body["model"] == "test-model"
    assert body["finish_reason"] == "stop"
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert all(isinstance(body["timing"][name], int) for name in ("queued_ms", "first_token_ms", "total_ms"))
    assert await worker.status(body["id"]) == "finished"


async def test_several_prompts_are_answered_in_their_order_whatever_ends_first(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    asking = asyncio.create_task(http.post("/generate", json={"prompts": ["a", "b", "c"]}))
    attempts = await worker.take(3)  # all are there at once
    assert [bytes(attempt.request.prompt_token_ids) for attempt in attempts] == [b"a", b"b", b"c"]
    for attempt in reversed(attempts):
        await attempt.emit(bytes(attempt.request.prompt_token_ids).decode().upper())
        await attempt.finish()
    results = (await asking).json()["results"]
    assert [result["text"] for result in results] == ["A", "B", "C"]
    assert len({result["id"] for result in results}) == 3


async def test_one_failed_prompt_of_several_is_an_item_with_an_error(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    asking = asyncio.create_task(http.post("/generate", json={"prompts": ["a", "b"]}))
    first, second = await worker.take(2)
    await first.fail(message="this row broke")
    await second.emit("B")
    await second.finish()
    response = await asking
    assert response.status_code == 200
    failed, good = response.json()["results"]
    assert failed["error"]["message"] == "this row broke"
    assert good["text"] == "B"


async def ask(http: httpx.AsyncClient, worker: ScriptedWorker, **body: Any) -> Attempt:
    """Send a request, let it finish, return what the worker got."""
    asking = asyncio.create_task(http.post("/generate", json={"prompt": "hello", **body}))
    (attempt,) = await worker.take()
    await attempt.finish()
    assert (await asking).status_code == 200
    return attempt


async def test_every_parameter_reaches_the_worker(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    attempt = await ask(
        http,
        worker,
        model="test-model",
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        seed=-5,
        stop=["x", "yz"],
        ignore_eos=True,
    )
    params = attempt.request.sampling_params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (7, 0.5, 0.9, 3)
    assert (params.stop, params.ignore_eos, attempt.request.seed) == (("x", "yz"), True, -5)
    assert (attempt.request.tenant, attempt.request.job_class, attempt.request.stream) == (
        "default",
        "interactive",
        False,
    )


async def test_null_is_the_same_as_nothing(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    names = ("model", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "prompts")
    attempt = await ask(http, worker, **dict.fromkeys(names))
    params = attempt.request.sampling_params
    assert params.max_tokens == CONTEXT - 5  # the default is more than the context leaves
    assert (params.temperature, params.top_p, params.top_k, params.stop, params.ignore_eos) == (1, 1, 0, (), False)


async def test_seeds_are_random_unless_given(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    seeds = {(await ask(http, worker)).request.seed for _ in range(4)}
    assert len(seeds) == 4


async def test_the_longest_prompt_leaves_room_for_one_token(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    attempt = await ask(http, worker, prompt="x" * (CONTEXT - 1))
    assert attempt.request.sampling_params.max_tokens == 1


@pytest.mark.parametrize(
    ("body", "param", "numbers"),
    [
        ({"prompt": "x" * CONTEXT}, "prompt", ["64 tokens", "is 64"]),
        ({"prompt": "x" * 10 * CONTEXT}, "prompt", ["640 tokens", "is 64"]),
        ({"prompts": ["x", "x" * 65]}, "prompts", ["65 tokens", "is 64"]),
        ({"prompt": "x" * 59, "max_tokens": 10}, "max_tokens", ["59 tokens", "leaves 5", "of 64"]),
    ],
)
async def test_what_exceeds_the_context_is_refused_with_the_numbers(
    http: httpx.AsyncClient, worker: ScriptedWorker, body: dict[str, Any], param: str, numbers: list[str]
) -> None:
    response = await http.post("/generate", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert all(number in error["message"] for number in numbers), error["message"]
    assert await worker.num_queued() == 0


async def test_json_is_understood_whatever_the_content_type_says(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    async with worker.answering("A"):
        for headers in ({"Content-Type": "application/x-www-form-urlencoded"}, {}):  # what `curl -d` sends; nothing
            response = await http.post("/generate", content=b'{"prompt": "x"}', headers=headers)
            assert response.json()["text"] == "A"


async def test_a_surrogate_pair_is_one_character(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    asking = asyncio.create_task(http.post("/generate", content=rb'{"prompt": "\ud83d\ude00"}'))
    (attempt,) = await worker.take()
    assert bytes(attempt.request.prompt_token_ids).decode() == "😀"
    await attempt.finish()
    assert (await asking).status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"prompt": "\ud800"}',
        rb'{"prompts": ["a", "\udc00b"]}',
        rb'{"prompt": "x", "stop": ["\ud800"]}',
        rb'{"prompt": "x", "model": "\ud800"}',
        rb'{"prompt": "x", "\ud800": 1}',
        b'{"prompt": "\xff"}',
        b"",
        b"{",
        b"[" * 100_000,
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "seed": ' + b"9" * 10_000 + b"}",
    ],
)
async def test_what_is_no_good_json_is_a_400_on_both_transports(
    http: httpx.AsyncClient, worker: ScriptedWorker, raw: bytes
) -> None:
    for path in ("/generate", "/generate_stream"):
        response = await http.post(path, content=raw)
        assert response.status_code == 400
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert "Traceback" not in response.text
    assert await worker.num_queued() == 0


@pytest.mark.parametrize(
    ("end", "status", "code"), [("fail", 502, "engine_error"), ("cancel", 409, "cancelled"), ("lose", 503, "job_lost")]
)
async def test_a_job_that_does_not_finish_is_an_http_error_but_never_a_500(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_client: Redis, end: str, status: int, code: str
) -> None:
    asking = asyncio.create_task(http.post("/generate", json={"prompt": "x"}))
    (attempt,) = await worker.take()
    if end == "fail":
        await attempt.fail()
    elif end == "cancel":
        await http.delete(f"/jobs/{attempt.id}")
        await attempt.cancelled()
    else:  # again and again: what is lost once is submitted again

        async def is_lost() -> bool:
            await redis_client.flushall()
            return asking.done()

        await eventually(is_lost, "the API gives up")
    response = await asking
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("api_overrides", [{"job_timeout": 0.3}])
async def test_a_job_that_expires_is_a_504(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    response = await http.post("/generate", json={"prompt": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "expired")


async def test_hanging_up_cancels_every_prompt(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    asking = asyncio.create_task(http.post("/generate", json={"prompts": ["a", "b", "c"]}))
    running, *_ = await worker.take(1)
    asking.cancel()
    await asyncio.wait([asking])

    async def others_are_cancelled() -> bool:
        keys = [key async for key in worker.client.scan_iter(match="*:job:*")]
        jobs = [await worker.client.hmget(key, "status", "cancel") for key in keys]
        return sorted(map(str, jobs)) == sorted(map(str, [["running", "1"], ["cancelled", None], ["cancelled", None]]))

    await eventually(others_are_cancelled, "queued prompts are cancelled, the running one is flagged")
    assert (await running.emit("A")).name == "CANCELLED"
    await running.cancelled()
    assert await worker.take_now(5) == []
    assert await worker.num_queued() == 0


async def test_the_request_of_a_job_can_be_read_in_redis(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_client: Redis
) -> None:
    attempt = await ask(http, worker, prompt="hello")
    stored = await redis_client.hget(worker.queue.keys.job(attempt.id), "request")
    assert json.loads(stored)["prompt_token_ids"] == list(b"hello")
