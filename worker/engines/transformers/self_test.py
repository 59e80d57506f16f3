"""Proof at start-up that a model computes what it should through the paged attention: some families bypass the hook, or
keep state that a paged cache does not hold. Such a model is refused, with the reason."""

from itertools import pairwise
from typing import Any

import torch

from shared.errors import ModelError
from shared.messages import SamplingParams
from worker.engines.transformers.attention import NAME
from worker.engines.transformers.kv_cache import KVCache
from worker.engines.transformers.model_runner import ModelRunner
from worker.engines.transformers.scheduler import Chunk, Row

LENGTH = 24  # tokens; more than a block
CUTS = (0, 7, 8, 22, 23, 24)  # prompt chunks and single tokens
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.05}  # root mean square, of the logits' spread


def self_test(model: Any, max_model_len: int) -> KVCache:
    """Compare with the module's own forward over the same tokens, and leave the model with paged attention. Returns a
    tiny cache that knows the shapes of all layers. Raises ModelError."""
    config = model.config.get_text_config()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, config.vocab_size, (LENGTH,), generator=generator).tolist()
    reference = _own_forward(model, tokens)
    cache = KVCache(4, dtype=model.dtype, device=model.device)
    try:
        model.set_attn_implementation(NAME)
        logits, windows = _paged_forward(model, cache, tokens)
    except Exception as error:  # whatever an unknown module does with what it does not expect
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelError(f"{config.model_type} models do not run on paged attention ({reason})") from error
    missing = set(range(config.num_hidden_layers)) - set(windows)
    if missing:
        raise ModelError(
            f"{config.model_type} models do not run on paged attention: {len(missing)} of {config.num_hidden_layers} "
            "layers do not use transformers' attention interface"
        )
    _check_windows(config, windows, max_model_len)
    _compare(config.model_type, logits, reference, TOLERANCE.get(model.dtype, 0.15))
    return cache


@torch.inference_mode()
def _own_forward(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits [tokens, vocabulary] without a cache, with the attention that the model was loaded with."""
    output: torch.Tensor = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False).logits[0]
    return output.float()


def _paged_forward(model: Any, cache: KVCache, tokens: list[int]) -> tuple[torch.Tensor, dict[int, int | None]]:
    """Logits at the ends of the chunks, and the windows of the layers that came through the hook."""
    runner = ModelRunner(model, cache, max_num_seqs=1, max_model_len=LENGTH)
    params = SamplingParams(max_tokens=1)
    row = Row("self-test", 0, [], LENGTH, params, seed=0, blocks=[1, 2])
    runner.place(row)
    found: list[torch.Tensor] = []
    windows: dict[int, int | None] = {}
    for start, end in pairwise(CUTS):
        row.token_ids = tokens[:end]
        logits, _, context = runner.run([Chunk(row, start, end - start)])
        found.append(logits[0].float())
        windows |= context.windows
    return torch.stack(found), windows


def _check_windows(config: Any, windows: dict[int, int | None], max_model_len: int) -> None:
    """The comparison is too short to leave a window, so ask whether the hook was told of those in the config."""
    sizes = {
        "full_attention": None,
        "sliding_attention": getattr(config, "sliding_window", None),
        "chunked_attention": getattr(config, "attention_chunk_size", None),
    }
    for layer, kind in enumerate(getattr(config, "layer_types", None) or ()):
        size = sizes.get(kind, 0)
        is_told = kind != "chunked_attention" and windows[layer] == size
        if not is_told and (size is None or max_model_len > size):
            hint = f", which differs beyond {size} tokens (see FOREBAY_MAX_MODEL_LEN)" if size else ""
            raise ModelError(f"{config.model_type} models do not run on paged attention: layer {layer} is {kind}{hint}")


def _compare(family: str, logits: torch.Tensor, reference: torch.Tensor, tolerance: float) -> None:
    expected = reference[[end - 1 for end in CUTS[1:]]]
    spread = float(expected.std()) or 1.0
    difference = float((logits - expected).square().mean().sqrt()) / spread
    if not difference <= tolerance:
        raise ModelError(
            f"{family} models compute other logits through paged attention (off by {difference:.3g} spreads)"
        )
