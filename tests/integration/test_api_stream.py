"""POST /generate_stream: what a stream carries, and how it ends."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from httpx_sse._decoders import SSEDecoder
from redis.asyncio import Redis

from tests.support.eventually import eventually
from tests.support.scripted_worker import ScriptedWorker
from tests.support.sse import data_of, open_stream


async def test_a_stream_carries_every_token_and_then_one_done(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with worker.answering("A", "B", "C", reason="length"), open_stream(http, max_tokens=3) as stream:
        assert await stream.text() == "ABC"
    tokens, done = [data_of(event) for event in stream.seen[:-1]], data_of(stream.seen[-1])
    assert [token["index"] for token in tokens] == [0, 1, 2]
    assert [token["token"] for token in tokens] == [ord("A"), ord("B"), ord("C")]
    assert len({token["id"] for token in tokens} | {done["id"]}) == 1
    assert done["model"] == "test-model"
    assert done["finish_reason"] == "length"
    assert done["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert set(done["timing"]) == {"queued_ms", "first_token_ms", "total_ms"}
    assert [event.id for event in stream.seen] == ["1", "2", "3", "4"]  # the numbers in the log


async def test_the_headers_come_before_the_first_token_and_forbid_buffering(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    async with http.stream(
        "POST", "/generate_stream", json={"prompt": "x"}, headers={"Accept-Encoding": "gzip"}
    ) as response:
        (attempt,) = await worker.take()  # only now does a token exist
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers
        await attempt.emit("A")
        await attempt.finish()
        body = await response.aread()
    assert b"\r" not in body
    assert body.startswith(b"id: 1\nevent: token\ndata: {")
    assert body.endswith(b"}\n\n")


async def test_each_token_can_be_read_before_the_next_is_made(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        for piece in "ABCDEFGHIJ":  # no spaces: nothing waits for the end of a word
            await attempt.emit(piece)
            assert data_of(await stream.next())["text"] == piece
        await attempt.finish()
        assert await stream.text() == "ABCDEFGHIJ"


async def test_an_event_of_several_tokens_delivers_all_of_them(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        await attempt.emit("A", "B", "C")
        await attempt.emit("D")
        await attempt.finish()
        assert await stream.text() == "ABCD"
    first, second, done = (data_of(event) for event in stream.seen)
    assert (first["index"], first["tokens"]) == (0, [65, 66, 67])
    assert second["index"] == 3
    assert done["usage"]["completion_tokens"] == 4


async def test_text_released_without_a_token_is_delivered(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        await attempt.emit("A")
        event, previous = attempt.next_event()
        attempt.text += "held"
        await attempt.emit_all([(replace(event, text="held"), previous)])
        await attempt.finish()
        assert await stream.text() == "Aheld"
    held = data_of(stream.seen[1])
    assert (held["index"], held["token"], held["tokens"]) == (1, None, [])


async def test_no_first_token_is_lost_however_fast_the_worker(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    at_once = asyncio.Semaphore(16)

    async def one(number: int) -> str:
        async with at_once, open_stream(http, f"prompt {number}") as stream:
            return await stream.text()

    async with worker.answering("A", "B", "C"):
        texts = await asyncio.gather(*(one(number) for number in range(200)))
    assert texts == ["ABC"] * 200


@pytest.mark.parametrize("api_overrides", [{"keep_alive_interval": 0.02}])
async def test_a_queued_stream_gets_comments(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with http.stream("POST", "/generate_stream", json={"prompt": "x"}) as response:
        lines = response.aiter_lines()
        assert [await anext(lines) for _ in range(4)] == [": keep-alive"] * 4
        (attempt,) = await worker.take()
        await attempt.finish()
        rest = [line async for line in lines]
    assert all(line.split(":")[0] in ("", "id", "event", "data") for line in rest)
    assert rest.count("event: done") == 1


@pytest.mark.parametrize("api_overrides", [{"keep_alive_interval": 0.02}])
async def test_comments_between_tokens_are_no_events(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    """httpx-sse, like openai-python, makes an empty event of a comment followed by a blank line."""
    async with http.stream("POST", "/generate_stream", json={"prompt": "x"}) as response:
        (attempt,) = await worker.take()
        await attempt.emit("A")
        pieces = response.aiter_text()
        text = await anext(pieces)
        while "event: token" not in text or "keep-alive" not in text.partition("event: token")[2]:
            text += await anext(pieces)
        await attempt.emit("B")
        await attempt.finish()
        text += "".join([piece async for piece in pieces])
    decoder = SSEDecoder()
    events = [event for line in text.removesuffix("\n").split("\n") if (event := decoder.decode(line))]
    assert [event.event for event in events] == ["token", "token", "done"]


async def test_a_failure_in_the_middle_is_one_error_event(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        for piece in "ABC":
            await attempt.emit(piece)
        await attempt.fail(message="the engine broke")
        assert await stream.text() == "ABC"
    end = stream.seen[-1]
    assert end.event == "error"
    assert data_of(end) == {
        "id": attempt.id,
        "error": {"message": "the engine broke", "type": "server_error", "param": None, "code": "engine_error"},
    }


@pytest.mark.parametrize("api_overrides", [{"job_timeout": 0.3}])
async def test_a_job_that_nobody_takes_expires_for_its_client_too(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    async with open_stream(http) as stream:
        await stream.rest()
    assert [data_of(event)["error"]["code"] for event in stream.seen] == ["expired"]


@pytest.mark.parametrize("api_overrides", [{"job_timeout": 0.5}])
async def test_a_job_whose_worker_went_silent_expires_with_the_text_so_far(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        await attempt.emit("A")
        assert await stream.text() == "A"
    assert data_of(stream.seen[-1])["error"]["code"] == "expired"
    assert await worker.num_queued() == 0


async def test_a_job_that_redis_has_lost_goes_on(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_client: Redis
) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        await attempt.emit("A")
        await stream.next()
        await redis_client.flushall()
        (again,) = await worker.take()
        await again.emit("B")
        await again.finish()
        assert await stream.text() == "AB"
    assert [event.id for event in stream.seen] == ["1", "2", "3"]


async def test_a_job_that_redis_loses_again_and_again_ends_with_an_error(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_client: Redis
) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        await attempt.emit("A")
        await stream.next()
        reading = asyncio.create_task(stream.text())

        async def is_lost() -> bool:
            await redis_client.flushall()
            return reading.done()

        await eventually(is_lost, "the API gives up")
        assert await reading == "A"
    assert data_of(stream.seen[-1])["error"]["code"] == "job_lost"
    assert stream.seen[-1].id == "1"  # no number of its own: no log holds it


async def test_hanging_up_in_the_middle_cancels_the_job(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        await attempt.emit("A")
        await stream.next()

    async def is_flagged() -> Any:
        return await worker.client.hget(worker.queue.keys.job(attempt.id), "cancel")

    await eventually(is_flagged, "the job is flagged as cancelled")
    assert (await attempt.emit("B")).name == "CANCELLED"
    await attempt.cancelled()
    assert await worker.num_queued() == 0


async def test_queued_jobs_of_clients_that_left_never_run(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    for _ in range(5):
        async with open_stream(http):
            pass

    async def num_cancelled() -> int:
        ids = [key async for key in worker.client.scan_iter(match="*:job:*")]
        statuses = [await worker.client.hget(key, "status") for key in ids]
        return statuses.count("cancelled")

    async def all_cancelled() -> bool:
        return await num_cancelled() == 5

    await eventually(all_cancelled, "all five jobs are cancelled")
    async with worker.answering("A"), open_stream(http) as stream:
        assert await stream.text() == "A"
    assert await num_cancelled() == 5


async def test_a_normal_end_cancels_nothing(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    async with worker.answering("A"), open_stream(http) as stream:
        await stream.text()
    assert await worker.status(data_of(stream.seen[-1])["id"]) == "finished"


@pytest.mark.parametrize("api_overrides", [{"subscriber_buffer": 4, "watchdog_interval": 30}])
async def test_a_slow_reader_gets_everything_from_the_log(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    """More than sockets and the buffer hold, before the client reads its first byte."""
    text = "".join(chr(ord("a") + number % 26) for number in range(1000))
    padding = "." * 5000
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        for start in range(0, len(text), 100):
            await attempt.emit_all([attempt.next_event(piece + padding) for piece in text[start : start + 100]])
        await attempt.finish()
        assert (await stream.text()).replace(padding, "") == text


@pytest.mark.parametrize("api_overrides", [{"send_timeout": 0.2}])
async def test_a_reader_that_takes_nothing_is_cut_off_and_its_job_cancelled(
    http: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    async with open_stream(http) as stream:
        (attempt,) = await worker.take()
        await attempt.emit("A")
        await stream.next()

        async def is_cancelled() -> bool:
            return (await attempt.emit("x" * 1_000_000)).name == "CANCELLED"

        await eventually(is_cancelled, "the job is cancelled")
        await attempt.cancelled()


@pytest.mark.parametrize("character", ["\u2028", "\x85", "😀", "終", "\r\n", "\x00"])
async def test_any_character_survives(http: httpx.AsyncClient, worker: ScriptedWorker, character: str) -> None:
    async with worker.answering("A", character, "B"), open_stream(http) as stream:
        assert await stream.text() == f"A{character}B"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompts": ["x"]}, 400, "prompt"),
        ({"prompt": "x", "model": "no-such"}, 404, "model"),
        ({"prompt": "x" * 64}, 400, "prompt"),
    ],
)
async def test_what_is_known_before_the_first_token_is_a_plain_http_error(
    http: httpx.AsyncClient, worker: ScriptedWorker, body: dict[str, Any], status: int, param: str
) -> None:
    response = await http.post("/generate_stream", json=body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param
    assert await worker.num_queued() == 0
