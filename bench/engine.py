"""Decode speed of the transformers engine, through the Engine protocol, against `model.generate` with a static batch of
the same prompts: same process, same dtype, rounds interleaved, medians.

    python -m bench.engine [--dtype bfloat16] [--rounds 5] [--batches 1 8 32]
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from shared.messages import SamplingParams
from shared.settings import DEFAULT_MODEL
from worker.engines.base import EngineRequest
from worker.engines.transformers.engine import TransformersEngine
from worker.engines.transformers.loader import load_engine
from worker.models import resolve_model
from worker.settings import WorkerSettings

PROMPT_LENGTH = 12
NEW_TOKENS = 64


def engine_rate(engine: TransformersEngine, prompts: Sequence[Sequence[int]]) -> float:
    """Tokens/s, prefill included."""
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
    left = {str(number): NEW_TOKENS for number in range(len(prompts))}
    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        engine.add(EngineRequest(str(number), prompt, params, seed=0))
    while left:
        for output in engine.step():
            left[output.id] -= len(output.token_ids)
            if left[output.id] <= 0:
                engine.abort(output.id)
                del left[output.id]
    return len(prompts) * NEW_TOKENS / (time.perf_counter() - start)


def generate_rate(model: Any, prompts: Sequence[Sequence[int]]) -> float:
    """Tokens/s of a static batch, prefill included."""
    ids = torch.tensor(prompts)
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=2,
        )
    assert output.shape[1] == PROMPT_LENGTH + NEW_TOKENS
    return len(prompts) * NEW_TOKENS / (time.perf_counter() - start)


def compare(engine: TransformersEngine, model: Any, batch: int, rounds: int) -> None:
    """Print one line of medians and their ratio, with its range over the rounds."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 40_000, (batch, PROMPT_LENGTH), generator=generator).tolist()
    pairs = [(engine_rate(engine, prompts), generate_rate(model, prompts)) for _ in range(rounds + 1)][1:]
    ours, theirs = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratios = sorted(mine / other for mine, other in pairs)
    print(f"{batch:5} {ours:10.0f} {theirs:10.0f} {statistics.median(ratios):8.2f}   {ratios[0]:.2f}-{ratios[-1]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--data-dir", type=Path, default=Path.home() / ".forebay")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    options = parser.parse_args()
    model_dir = resolve_model(options.model, options.data_dir, print)
    for dtype in options.dtype:
        settings = WorkerSettings(dtype=dtype, device="cpu", max_num_seqs=max(options.batches), max_model_len=512)
        engine = load_engine(model_dir, settings, lambda _: None)
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype)).eval()
        print(f"{dtype}, {torch.get_num_threads()} threads, {NEW_TOKENS} tokens after {PROMPT_LENGTH}, tokens/s")
        print("batch     engine   generate    ratio   range")
        for batch in options.batches:
            compare(engine, model, batch, options.rounds)


if __name__ == "__main__":
    main()
