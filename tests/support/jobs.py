"""Jobs for the fake engine."""

import json
from itertools import islice
from typing import Any

from shared.messages import JobRequest, SamplingParams
from worker.engines.fake import chain_tokens, fake_tokenizer

_TOKENIZER = fake_tokenizer()
MODEL = "fake-model"
SEED = 7


def prompt_ids(prompt: str) -> tuple[int, ...]:
    """The fake tokenizer's ids, without further pieces."""
    return tuple(_TOKENIZER.encode(prompt).ids)


def script(tokens: list[str | int], **options: Any) -> str:
    """A prompt that makes the fake engine produce these tokens."""
    return json.dumps({"script": tokens, **options})


def fake_job(
    job_id: str, prompt: str = "hello", *, max_tokens: int = 64, stream: bool = True, **params: Any
) -> JobRequest:
    """A job for the fake engine."""
    sampling_params = SamplingParams(max_tokens, **params)
    return JobRequest(job_id, MODEL, prompt_ids(prompt), sampling_params, SEED, stream)


def chain_text(prompt: str, length: int, seed: int = SEED) -> str:
    """What the fake engine answers to a prompt without a script."""
    return bytes(islice(chain_tokens(prompt_ids(prompt), seed), length)).decode()
