"""Faults that servers of this kind had, against `forebay up` with the fake engine."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bench.race import fake_cases, run_race, saturated_cores
from tests.e2e.conftest import Stack, forebay_up
from tests.e2e.streams import generate, read_stream
from tests.support.eventually import eventually
from tests.support.jobs import chain_text, script

PIECES = ["ok", "\nUs", "er", "ST", "abc", "Mars", "DE", "FG", "HI", "\ufffd", "rest"]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("forebay")
    pieces = directory / "pieces.json"
    pieces.write_text(json.dumps(PIECES))
    settings = {"FOREBAY_ENGINE": "fake", "FOREBAY_MODEL": "fake-model", "FOREBAY_FAKE_PIECES": str(pieces)}
    with forebay_up(FOREBAY_DATA_DIR=str(directory), **settings) as stack:
        yield stack


def body(prompt: str, **params: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 200, "seed": 7, **params}


async def both(stack: Stack, request: dict[str, Any]) -> tuple[str, str]:
    """Text and finish reason, which are the same streamed and not."""
    async with stack.client() as client:
        streamed = await read_stream(client, request)
        plain = await generate(client, request)
    assert streamed.done is not None
    assert streamed.text == plain["text"]
    assert streamed.done["finish_reason"] == plain["finish_reason"]
    assert streamed.done["usage"] == plain["usage"]
    assert len(streamed.token_ids) == plain["usage"]["completion_tokens"]
    return plain["text"], plain["finish_reason"]


async def test_instant_streams_lose_nothing(stack: Stack) -> None:
    slots = asyncio.Semaphore(16)

    async def one(number: int) -> str:
        async with slots:
            return (await read_stream(client, body(f"p{number}", max_tokens=3))).text

    async with stack.client() as client:
        texts = await asyncio.gather(*(one(number) for number in range(200)))
    assert texts == [chain_text(f"p{number}", 3) for number in range(200)]


@pytest.mark.parametrize(
    ("tokens", "params", "text", "reason"),
    [
        (["A", "B", "C", "D"], {"max_tokens": 1}, "A", "length"),
        (["A", "B", "C", "D"], {"max_tokens": 2}, "AB", "length"),
        (["A", "B", "C", "D"], {"max_tokens": 3}, "ABC", "length"),
        (["A"], {"max_tokens": 2}, "A", "stop"),
        (["A"], {"max_tokens": 1}, "A", "length"),
        (["ok", "\nUs", "er", ":", "rest"], {"stop": ["\nUser:"]}, "ok", "stop"),
        (["ok", "DE", "FG", "HI", "J", "rest"], {"stop": ["DEFGHIJ"]}, "ok", "stop"),
        (["ok", *"。終".encode(), "rest"], {"stop": "。終"}, "ok", "stop"),
        (["abc", "ST"], {"stop": "STOP!"}, "abcST", "stop"),
        (["abc", "ST", "x"], {"stop": "STOP!", "max_tokens": 2}, "abcST", "length"),
        (["Mars", "?", "\n"], {"stop": ["\n"]}, "Mars?", "stop"),
        (["ok"], {"stop": []}, "ok", "stop"),
        (["ok"], {"stop": None}, "ok", "stop"),
        (["a", "\ufffd"], {}, "a\ufffd", "stop"),
        ([0x80, " b", " c", " d"], {}, "\ufffd b c d", "stop"),
        ([*"🙂".encode(), *b" one two three"], {}, "🙂 one two three", "stop"),
        (["a", *"🙂".encode()[:2]], {}, "a\ufffd", "stop"),
    ],
)
async def test_text_and_reason(
    stack: Stack, tokens: list[str | int], params: dict[str, Any], text: str, reason: str
) -> None:
    assert await both(stack, body(script(tokens), **params)) == (text, reason)


async def test_a_stop_in_the_prompt_triggers_nothing(stack: Stack) -> None:
    assert await both(stack, body(script(["ok"]), stop=["script"])) == ("ok", "stop")


async def test_text_without_spaces_arrives_token_by_token(stack: Stack) -> None:
    async with stack.client() as client:
        reading = await read_stream(client, body(script(["x" * 50], delay_ms=10)))
    assert reading.text == "x" * 50
    assert len(reading.tokens) > 40


async def test_a_finished_stream_does_not_wait_for_a_long_one(stack: Stack) -> None:
    async with stack.client() as client:
        long = asyncio.create_task(read_stream(client, body(script(["x" * 200], delay_ms=20))))
        short = await read_stream(client, body(script(["ab"], delay_ms=20), max_tokens=2))
        waiting = await read_stream(client, body(script(["cd"]), max_tokens=2))
        assert not long.done()
        assert (short.text, waiting.text) == ("ab", "cd")
        assert (await long).text == "x" * 200


async def test_several_prompts_in_one_request(stack: Stack) -> None:
    prompts = [f"item {number}" for number in range(40)]
    async with stack.client() as client:
        answer = await generate(client, {"prompts": prompts, "max_tokens": 20, "seed": 7})
    assert [item["text"] for item in answer["results"]] == [chain_text(prompt, 20) for prompt in prompts]


async def test_a_failing_request_is_an_error_and_leaves_the_others_alone(stack: Stack) -> None:
    request = body(script(["abcdef"], fail_at=4, delay_ms=5))
    async with stack.client() as client:
        other = asyncio.create_task(read_stream(client, body(script(["x" * 60], delay_ms=5))))
        reading = await read_stream(client, request)
        response = await client.post("/generate", json=request)
        assert (await other).text == "x" * 60
    assert reading.text == "abc"
    assert reading.error is not None
    assert reading.error["error"]["code"] == "engine_error"
    assert response.status_code == 502
    assert "Traceback" not in response.text


async def test_both_kinds_of_hang_up_free_the_slot(stack: Stack) -> None:
    request = body(script(["x" * 2000], delay_ms=20), max_tokens=2000)
    async with stack.client() as client, stack.client() as other:
        async with client.stream("POST", "/generate_stream", json=request) as response:
            data = await anext(line async for line in response.aiter_lines() if line.startswith("data:"))
        job = f"/jobs/{json.loads(data.removeprefix('data:'))['id']}"
        await eventually(lambda: _has_status(other, job, "cancelled"), "the job is cancelled")
        plain = asyncio.create_task(client.post("/generate", json=request))
        await eventually(lambda: _running(stack) == 1, "the plain job runs")
        plain.cancel()
        await eventually(lambda: _running(stack) == 0, "the plain job is cancelled")


async def _has_status(client: Any, path: str, status: str) -> bool:
    return (await client.get(path)).json()["status"] == status


def _running(stack: Stack) -> int:
    url = next(line for line in stack.output.splitlines() if "redis-cli -u" in line).split()[2]
    with redis.Redis.from_url(url, decode_responses=True) as connection:
        keys = list(connection.scan_iter("*:jobs:*"))
        return sum(connection.xpending(key, "workers")["pending"] for key in keys)


async def test_nothing_is_mixed_while_all_cores_are_busy(stack: Stack) -> None:
    with saturated_cores():
        counts = await run_race(stack.url, fake_cases(500))
    assert counts == {"right": 1000}


async def test_queued_jobs_survive_a_restart_of_everything(tmp_path: Path) -> None:
    settings = {"FOREBAY_ENGINE": "fake", "FOREBAY_MODEL": "fake-model", "FOREBAY_DATA_DIR": str(tmp_path)}
    with forebay_up(**settings) as stack:
        async with stack.client() as client:
            answer = await generate(client, body("hello", max_tokens=5))
    with forebay_up(**settings) as stack:
        async with stack.client() as client:
            job = (await client.get(f"/jobs/{answer['id']}")).json()
    assert (job["status"], job["text"]) == ("finished", answer["text"])
