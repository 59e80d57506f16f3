"""Attention over the paged KV cache, entered through transformers' AttentionInterface. What a step needs to know stands
in a module-global context, because some model families do not pass keyword arguments on to their attention.

Heads of one KV group are folded into query rows, so that keys and values are never copied per head. Rows in decode are
batched by length class; the class depends on a row's own length alone, so that its neighbours cannot change its sums.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from worker.engines.transformers.block_manager import BLOCK_SIZE
from worker.engines.transformers.kv_cache import KVCache

NAME = "forebay_paged"


@dataclass(slots=True)
class Group:
    """Tokens that attend together: `size` rows of `num_queries` tokens each, from token `first` of the batch on.

    blocks: int64 [size, length / BLOCK_SIZE], where the context's keys and values lie; the rest of a line points to the
        scratch block
    positions: int64 [size, num_queries], of the queries
    """

    first: int
    size: int
    num_queries: int
    blocks: torch.Tensor
    positions: torch.Tensor
    masks: dict[object, torch.Tensor] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return self.size * self.num_queries

    def bias(self, window: int | None, heads_per_group: int, dtype: torch.dtype) -> torch.Tensor:
        """[size, 1, heads_per_group * num_queries, length], to be added to scores: 0 for keys that a query sees, -inf
        for others. The same for all layers of a kind, so it is made once a step."""
        kind = (window, heads_per_group, dtype)
        found = self.masks.get(kind)
        if found is None:
            found = self.masks[kind] = self._make_bias(window, heads_per_group, dtype)
        return found

    def _make_bias(self, window: int | None, heads_per_group: int, dtype: torch.dtype) -> torch.Tensor:
        keys = torch.arange(self.blocks.shape[1] * BLOCK_SIZE, device=self.blocks.device)
        queries = self.positions[..., None]
        seen = keys <= queries
        if window is not None:
            seen &= keys > queries - window
        bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
        return bias.repeat(1, heads_per_group, 1).unsqueeze(1)


@dataclass(slots=True)
class ForwardContext:
    """One step. `slots` int64 [tokens]: where the keys and values of the batch's tokens are written. `windows`: of the
    layers that have come through the hook, by layer index."""

    cache: KVCache
    slots: torch.Tensor
    groups: list[Group]
    windows: dict[int, int | None] = field(default_factory=dict)


_context: ForwardContext | None = None


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[None]:
    """Within it, a model whose attention implementation is NAME attends to the paged cache."""
    global _context
    _context = context
    try:
        yield
    finally:
        _context = None


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_unused: object,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, tokens, dim], key and value [1, kv_heads, tokens, dim] -> [1, tokens, heads, dim]."""
    context = _context
    if context is None:
        raise RuntimeError("paged attention was called outside a forward context")
    if position_bias is not None:
        raise NotImplementedError("learned position biases")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    context.windows[layer] = sliding_window
    keys, values = context.cache.layer(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    keys.index_copy_(0, context.slots, key[0].transpose(0, 1).to(keys.dtype))
    values.index_copy_(0, context.slots, value[0].transpose(0, 1).to(values.dtype))

    _, num_heads, num_tokens, _ = query.shape
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = query.new_zeros(1, num_tokens, num_heads, value.shape[-1])  # zero at padding tokens
    for group in context.groups:
        part = slice(group.first, group.first + group.num_tokens)
        queries = _fold(query[0, :, part], group, key.shape[1])
        found = _attend(
            queries, _gather(keys, group), _gather(values, group), group, scale, sliding_window, softcap, s_aux
        )
        output[0, part] = found
    return output, None


def _fold(query: torch.Tensor, group: Group, num_kv_heads: int) -> torch.Tensor:
    """[heads, size * num_queries, dim] -> [size, kv_heads, heads a group, num_queries, dim]."""
    heads_per_group = query.shape[0] // num_kv_heads
    folded = query.view(num_kv_heads, heads_per_group, group.size, group.num_queries, query.shape[-1])
    return folded.permute(2, 0, 1, 3, 4)


def _gather(cache: torch.Tensor, group: Group) -> torch.Tensor:
    """Contexts [size, length, kv_heads, dim]. Whole blocks: copying slot by slot takes three times as long on a CPU."""
    found = cache.view(-1, BLOCK_SIZE * cache.shape[1] * cache.shape[2]).index_select(0, group.blocks.flatten())
    return found.view(group.size, -1, cache.shape[1], cache.shape[2])


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: Group,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query as `_fold` gives it, keys and values [size, length, kv_heads, dim] -> [size * num_queries, heads, dim]."""
    size, num_kv_heads, heads_per_group, num_queries, dim = query.shape
    rows = query.reshape(size, num_kv_heads, heads_per_group * num_queries, dim)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    if softcap is None and sinks is None:
        bias = group.bias(window, heads_per_group, query.dtype)
        found = scaled_dot_product_attention(rows, keys, values, attn_mask=bias, scale=scale)
    else:
        found = _attend_plainly(
            rows, keys, values, group.bias(window, heads_per_group, torch.float32), scale, softcap, sinks
        )
    found = found.view(size, num_kv_heads, heads_per_group, num_queries, -1)
    return found.permute(0, 3, 1, 2, 4).reshape(size * num_queries, num_kv_heads * heads_per_group, -1)


def _attend_plainly(
    rows: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """For what the fused kernel lacks: soft-capped scores (Gemma 2) and attention sinks (gpt-oss)."""
    scores = torch.matmul(rows, keys.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + bias
    if sinks is not None:
        size, num_kv_heads, num_rows, _ = scores.shape
        sink = sinks.float().view(1, num_kv_heads, -1, 1)
        sink = sink.repeat_interleave(num_rows // sink.shape[2], dim=2).expand(size, -1, -1, -1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    if sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights.to(values.dtype), values)


def _no_mask(*_args: object, **_kwargs: object) -> None:
    """transformers need not build masks: the groups have their own."""


def register() -> None:
    """Make the implementation known to transformers; may be called again."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, _no_mask)
