"""Tiny models with random weights, and drivers for engines over them."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from shared.messages import SamplingParams
from worker.engines.base import EngineRequest
from worker.engines.transformers import attention
from worker.engines.transformers.engine import TransformersEngine
from worker.engines.transformers.loader import TokenizerFile, build_engine
from worker.settings import WorkerSettings

VOCAB = 128
WINDOW = 8  # shorter than the prompts
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.6,  # large, so that greedy tokens vary
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
GPT2_LIKE = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**COMMON),
    "qwen2": lambda: Qwen2Config(**COMMON),
    "qwen3": lambda: Qwen3Config(**COMMON),
    "mistral": lambda: MistralConfig(**COMMON, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(**COMMON, sliding_window=WINDOW, query_pre_attn_scalar=8, tie_word_embeddings=False),
    "gemma3": lambda: Gemma3TextConfig(
        **COMMON,
        sliding_window=WINDOW,
        tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    "gpt2": lambda: GPT2Config(**GPT2_LIKE, vocab_size=VOCAB, initializer_range=0.6, bos_token_id=1, eos_token_id=2),
    "opt": lambda: OPTConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        word_embed_proj_dim=16,
        ffn_dim=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        init_std=0.6,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
    ),
}


def tiny_model(family: str) -> Any:
    """A model of a family, always with the same weights, float32."""
    return model_of(CONFIGS[family]())


def model_of(config: PreTrainedConfig) -> Any:
    """A model with random weights."""
    attention.register()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32).eval()


def tiny_engine(model: Any, *, num_tokens: int = VOCAB, **settings: Any) -> TransformersEngine:
    """An engine over a copy of the model; the model itself stays as it is, for reference."""
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "max_model_len": 128} | settings
    tokenizer = Tokenizer(models.WordLevel({f"t{number}": number for number in range(num_tokens)}, unk_token="t0"))
    file = TokenizerFile(tokenizer.to_str(), num_tokens, None)
    return build_engine(copy.deepcopy(model), file, WorkerSettings(**options), lambda _: None)


def request(
    row_id: str,
    prompt: Sequence[int],
    max_tokens: int = 12,
    *,
    seed: int = 0,
    logged: Sequence[int] = (),
    **params: Any,
) -> EngineRequest:
    """Greedy unless the parameters say otherwise."""
    sampling_params = SamplingParams(max_tokens, **({"temperature": 0} | params))
    return EngineRequest(row_id, prompt, sampling_params, seed, logged)


def run(engine: TransformersEngine, requests: Iterable[EngineRequest]) -> dict[str, list[int]]:
    """All rows' tokens up to max_tokens or EOS; they start together, as far as there is room."""
    return run_schedule(engine, [(0, request) for request in requests])


def run_schedule(engine: TransformersEngine, arrivals: Iterable[tuple[int, EngineRequest]]) -> dict[str, list[int]]:
    """The same, each row not before its step."""
    waiting = sorted(arrivals, key=lambda arrival: arrival[0])
    running: dict[str, EngineRequest] = {}
    tokens: dict[str, list[int]] = {request.id: list(request.output_token_ids) for _, request in waiting}
    step = 0
    while waiting or running:
        while waiting and waiting[0][0] <= step and engine.can_add(waiting[0][1]):
            _, arrived = waiting.pop(0)
            engine.add(arrived)
            running[arrived.id] = arrived
        for output in engine.step():
            tokens[output.id] += output.token_ids
            if is_done(running[output.id], tokens[output.id], engine.info.eos_token_ids):
                engine.abort(output.id)
                del running[output.id]
        step += 1
    return tokens


def is_done(row: EngineRequest, tokens: Sequence[int], eos: frozenset[int]) -> bool:
    """What the worker checks after every step."""
    ended = tokens[-1] in eos and not row.sampling_params.ignore_eos
    return ended or len(tokens) >= row.sampling_params.max_tokens


@torch.inference_mode()
def reference(model: Any, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What `model.generate` makes of a prompt alone, greedy, EOS included."""
    ids = torch.tensor([list(prompt)])
    mask = torch.ones_like(ids)
    output = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=max_tokens, pad_token_id=0)
    found: list[int] = output[0, len(prompt) :].tolist()
    return found


def prompts(count: int, *, seed: int = 0, low: int = 1, high: int = 40) -> list[list[int]]:
    """Random prompts of different lengths, without special ids."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in lengths]
