"""`forebay up` with the real small model, in fp32 on the CPU."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.race import MAX_TOKENS, model_cases, run_race, saturated_cores
from shared.settings import DEFAULT_MODEL
from tests.e2e.conftest import Stack, forebay_up
from tests.e2e.streams import generate, read_stream
from worker.models import resolve_model

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

PROMPT = "The capital of France is"
QUESTION = "Once upon a time, in a land where it always rained, there lived a young fox who"
RACE = 500  # streams, and as many plain requests


@pytest.fixture(scope="module")
def model_dir(model_data_dir: Path) -> Path:
    return resolve_model(DEFAULT_MODEL, model_data_dir, print)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("forebay")
    (directory / "models").symlink_to(model_dir.parent)
    # One thread: two of them would wait for each other whenever the test itself needs a core.
    with forebay_up(
        FOREBAY_DATA_DIR=str(directory),
        FOREBAY_DTYPE="float32",
        FOREBAY_DEVICE="cpu",
        FOREBAY_NUM_THREADS="1",
        FOREBAY_MAX_MODEL_LEN="512",
    ) as stack:
        yield stack


def body(prompt: str, **params: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 16, "temperature": 0} | params


async def test_the_model_answers(stack: Stack) -> None:
    async with stack.client() as client:
        answer = await generate(client, body(PROMPT))
    assert "Paris" in answer["text"]
    assert answer["model"] == DEFAULT_MODEL
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}


async def test_a_stream_holds_what_the_plain_answer_holds(stack: Stack) -> None:
    async with stack.client() as client:
        for prompt in (PROMPT, "Repeat: 🙂🙂 日本語. Repeat: 🙂🙂"):
            plain, reading = await asyncio.gather(
                generate(client, body(prompt, max_tokens=24)), read_stream(client, body(prompt, max_tokens=24))
            )
            assert reading.text == plain["text"]
            assert reading.done is not None
            assert reading.done["usage"] == plain["usage"]


async def test_a_seeded_answer_is_the_same_in_any_company(stack: Stack) -> None:
    row = body(PROMPT, seed=42, temperature=0.8)
    async with stack.client() as client:
        alone = await generate(client, row)
        for others in (
            [body(QUESTION, temperature=1.2)],
            [body(QUESTION, temperature=1.2, seed=5), row],
            [body(QUESTION * 5, max_tokens=40)] * 3,
        ):
            found, *_ = await asyncio.gather(*(generate(client, request) for request in (row, *others)))
            assert found["text"] == alone["text"]


async def test_a_short_prompt_is_not_changed_by_a_long_one(stack: Stack) -> None:
    short, long = body("Hi", max_tokens=24), body(QUESTION * 15, max_tokens=24)
    async with stack.client() as client:
        alone = await generate(client, short)
        together = await asyncio.gather(generate(client, long), generate(client, short))
        decoding = asyncio.create_task(generate(client, long | {"max_tokens": 64}))
        joining = await generate(client, short)
        await decoding
    assert alone["text"] == together[1]["text"] == joining["text"]


async def test_prompts_of_one_request_equal_single_requests(stack: Stack) -> None:
    prompts = [PROMPT, QUESTION, "1 2 3 4", "Hi"]
    async with stack.client() as client:
        batch = await generate(client, {"prompts": prompts, "max_tokens": 12, "temperature": 0})
        singles = [await generate(client, body(prompt, max_tokens=12)) for prompt in prompts]
    assert [item["text"] for item in batch["results"]] == [single["text"] for single in singles]


async def test_stop_strings_and_the_context_limit(stack: Stack) -> None:
    async with stack.client() as client:
        whole = await generate(client, body("Count: 1, 2, 3,", max_tokens=24))
        stop = whole["text"][6:9]
        stopped = await generate(client, body("Count: 1, 2, 3,", max_tokens=24, stop=[stop]))
        refused = await client.post("/generate", json=body("word " * 600))
    assert stopped["text"] == whole["text"][: whole["text"].index(stop)]
    assert stopped["finish_reason"] == "stop"
    assert refused.status_code == 400
    assert "512" in refused.json()["error"]["message"]


async def test_nothing_is_mixed_while_all_cores_are_busy(stack: Stack, model_dir: Path) -> None:
    cases = model_cases(RACE, model_dir)
    assert len({case.answer for case in cases}) > 0.9 * RACE, "answers must differ for a mix to show"
    with saturated_cores():
        counts = await run_race(stack.url, cases)
    assert counts == {"right": 2 * RACE}, f"{counts}; {MAX_TOKENS} tokens each"
