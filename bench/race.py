"""The race that the ancestor of this design lost: with every core saturated, streams run and plain requests are put
between them; each prompt has its own known greedy answer. Prints how many were mixed, lost or failed (0), and beside
it in how many runs the naive version with one shared result queue (bench/naive_queue.py) swapped results.

    python -m bench.race [--requests 500] [--engine transformers|fake]
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from httpx_sse import aconnect_sse

from bench.local_server import local_server
from bench.naive_queue import mixed_runs

MAX_TOKENS = 6
CLIENTS = 32  # requests under way at once
TIMEOUT = 600.0  # s


@dataclass(frozen=True, slots=True)
class Case:
    """One request and the only right answer to it."""

    prompt: str
    answer: str


@contextmanager
def saturated_cores() -> Iterator[None]:
    """One busy process a core."""
    burners = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(os.cpu_count() or 1)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _burn() -> None:
    while True:
        pass


async def run_race(url: str, cases: Sequence[Case]) -> Counter[str]:
    """Send every case both as a stream and as a plain request, interleaved. Counts `right`, `mixed` (another case's
    answer), `wrong` and `failed`."""
    answers = {case.answer for case in cases}
    slots = asyncio.Semaphore(CLIENTS)
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT, limits=limits) as client:
        calls = [call for case in cases for call in (_stream(client, case.prompt), _plain(client, case.prompt))]
        expected = [case.answer for case in cases for _ in range(2)]
        texts = await asyncio.gather(*(_within(slots, call) for call in calls), return_exceptions=True)
    return Counter(_judge(text, right, answers) for text, right in zip(texts, expected, strict=True))


def _judge(text: str | BaseException, right: str, answers: set[str]) -> str:
    if isinstance(text, BaseException):
        return "failed"
    if text == right:
        return "right"
    return "mixed" if text in answers else "wrong"


async def _within(slots: asyncio.Semaphore, call: Awaitable[str]) -> str:
    async with slots:
        return await call


def _body(prompt: str) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "seed": 1, "ignore_eos": True}


async def _plain(client: httpx.AsyncClient, prompt: str) -> str:
    response = await client.post("/generate", json=_body(prompt))
    return str(response.raise_for_status().json()["text"])


async def _stream(client: httpx.AsyncClient, prompt: str) -> str:
    text = ""
    async with aconnect_sse(client, "POST", "/generate_stream", json=_body(prompt)) as source:
        async for event in source.aiter_sse():
            if event.event == "done":
                return text
            if event.event == "error":
                raise RuntimeError(event.data)
            text += event.json()["text"]
    raise RuntimeError("the stream ended without `done`")


def fake_cases(count: int) -> list[Case]:
    """For the fake engine, whose tokens are a hash of prompt and seed."""
    from itertools import islice

    from worker.engines.fake import chain_tokens, fake_tokenizer

    tokenizer = fake_tokenizer()
    prompts = [f"case {number:04}" for number in range(count)]
    chains = (chain_tokens(tokenizer.encode(prompt).ids, seed=1) for prompt in prompts)
    return [
        Case(prompt, bytes(islice(chain, MAX_TOKENS)).decode()) for prompt, chain in zip(prompts, chains, strict=True)
    ]


def model_cases(count: int, model_dir: Path) -> list[Case]:
    """For the real model: greedy fp32 answers of `model.generate`, prompts of equal length in static batches."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    prompts = [f"{number:04} {number:04} {number:04} {number:04} " for number in range(count)]
    eos = tokenizer.eos_token_id  # the requests ignore it
    answers: list[str] = []
    for start in range(0, count, 50):
        inputs = tokenizer(prompts[start : start + 50], return_tensors="pt")
        output = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_TOKENS, suppress_tokens=[eos])
        answers += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [Case(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]


def make_cases(engine: str, count: int, data_dir: Path) -> list[Case]:
    """Cases for an engine; the model is fetched if need be."""
    if engine == "fake":
        return fake_cases(count)
    from shared.settings import DEFAULT_MODEL
    from worker.models import resolve_model

    return model_cases(count, resolve_model(DEFAULT_MODEL, data_dir, print))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500, help="streams, and as many plain requests")
    parser.add_argument("--engine", choices=("transformers", "fake"), default="transformers")
    parser.add_argument("--naive-runs", type=int, default=100)
    parser.add_argument("--data-dir", type=Path, default=Path.home() / ".forebay")
    options = parser.parse_args()
    cases = make_cases(options.engine, options.requests, options.data_dir)
    print(f"{len(cases)} prompts, {len({case.answer for case in cases})} different answers")
    with tempfile.TemporaryDirectory() as directory, saturated_cores():
        log = Path(directory) / "forebay.log"
        models = options.data_dir / "models"
        settings = {"FOREBAY_ENGINE": options.engine, "FOREBAY_DATA_DIR": directory} | FP32
        (Path(directory) / "models").symlink_to(models)
        with local_server(log, **settings) as url:
            counts = asyncio.run(run_race(url, cases))
        naive = mixed_runs(options.naive_runs)
    total = counts.total()
    print(f"forebay: {total} requests, {', '.join(f'{name} {counts[name]}' for name in VERDICTS)}")
    print(f"naive shared queue: {naive} of {options.naive_runs} runs mixed ({100 * naive / options.naive_runs:.0f} %)")


FP32 = {"FOREBAY_DTYPE": "float32", "FOREBAY_NUM_THREADS": "1", "FOREBAY_MAX_MODEL_LEN": "512"}
VERDICTS = ("right", "mixed", "wrong", "failed")

if __name__ == "__main__":
    main()
