"""The next token of each row. The noise of a token is one uniform number that depends on (seed, position) alone, put
through the inverse of the row's cumulative distribution: neighbours, row numbers and restarts change nothing.

Rows are drawn together, in vocabulary order. Sums run along a row by `cumsum`, which adds in order: `sum` splits a lone
row among threads, so its last bits would depend on how many rows there are.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch

from worker.engines.transformers.scheduler import Row

GREEDY_TEMPERATURE = 1e-5  # at or below it the most likely token is taken (as vLLM does)


def uniform(seed: int, position: int) -> float:
    """In [0, 1), from the row's seed and the number of the output token."""
    digest = blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


class Sampler:
    """`num_tokens`: ids at or beyond it are never sampled (embeddings may be padded beyond the tokenizer), nor are
    `unused`, the ids below it that the tokenizer does not know either."""

    def __init__(
        self, *, num_tokens: int, eos_token_ids: Sequence[int], device: torch.device, unused: Sequence[int] = ()
    ) -> None:
        self._num_tokens = num_tokens
        known_eos = [token for token in sorted(eos_token_ids) if token < num_tokens]
        self._eos = torch.tensor(known_eos, dtype=torch.long, device=device)
        self._unused = torch.tensor([token for token in unused if token < num_tokens], dtype=torch.long, device=device)

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int | None]:
        """logits [rows, vocabulary], any float dtype -> a token id for each row; None where logits are not finite."""
        logits = logits[:, : self._num_tokens].float()
        self._mask(logits, rows)
        tokens = _argmax(logits)
        best = logits.gather(1, tokens[:, None])
        drawn = [number for number, row in enumerate(rows) if row.sampling_params.temperature > GREEDY_TEMPERATURE]
        if drawn:
            index = torch.tensor(drawn, device=logits.device)
            tokens[index] = _draw(logits[index] - best[index], [rows[number] for number in drawn])
        is_finite = best[:, 0].isfinite().tolist()
        return [token if finite else None for token, finite in zip(tokens.tolist(), is_finite, strict=True)]

    def _mask(self, logits: torch.Tensor, rows: Sequence[Row]) -> None:
        if len(self._unused):
            logits.index_fill_(1, self._unused, float("-inf"))
        ignoring = [number for number, row in enumerate(rows) if row.sampling_params.ignore_eos]
        if ignoring and len(self._eos):
            logits[torch.tensor(ignoring, device=logits.device)[:, None], self._eos] = float("-inf")


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """The first of the largest of each row, NaN counting as largest. numpy's is five times as fast on a CPU."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Tokens, int64 [rows], of logits [rows, vocabulary] from which their row's largest was taken off."""
    device, size = logits.device, logits.shape[-1]
    if device.type == "mps":  # has no float64
        logits = logits.cpu()
    temperatures = torch.tensor([row.sampling_params.temperature for row in rows], device=logits.device)
    scaled = logits / temperatures[:, None]
    noise = torch.tensor(
        [uniform(row.seed, row.num_output_tokens) for row in rows], dtype=torch.float64, device=logits.device
    )[:, None]
    limits = [_limits(row, size) for row in rows]
    tokens = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    for is_open in (True, False):
        numbers = [number for number, limit in enumerate(limits) if (limit == (size, 1.0)) == is_open]
        if numbers:
            index = torch.tensor(numbers, device=logits.device)
            chosen = [limits[number] for number in numbers]
            part = scaled if len(numbers) == len(rows) else scaled[index]
            tokens[index] = _draw_open(part, noise[index]) if is_open else _draw_limited(part, noise[index], chosen)
    return tokens.to(device)


def _limits(row: Row, size: int) -> tuple[int, float]:
    """top_k and top_p of a row; (size, 1.0) if both are off."""
    params = row.sampling_params
    return params.top_k if 0 < params.top_k < size else size, min(params.top_p, 1.0)


def _draw_open(scaled: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Any token, int64 [rows]; scaled [rows, vocabulary], noise float64 [rows, 1]. noise < 1, so that the product stays
    below the sum; `right`, so that a token without weight is never picked."""
    up_to = scaled.exp().cumsum(dim=-1, dtype=torch.float64)
    return torch.searchsorted(up_to, noise * up_to[:, -1:], right=True)[:, 0]


def _draw_limited(scaled: torch.Tensor, noise: torch.Tensor, limits: Sequence[tuple[int, float]]) -> torch.Tensor:
    """One of the tokens that top_k and then top_p leave, at least one. Of equally likely tokens those with the lowest
    ids are left, so that one token left is the greedy one: the draw names a place in the sorted row, and the token is
    the one that a stable sort would have there."""
    top_k = torch.tensor([[limit[0]] for limit in limits], device=scaled.device)
    top_p = torch.tensor([[limit[1]] for limit in limits], dtype=torch.float64, device=scaled.device)
    rising = _largest(scaled, max(limit[0] for limit in limits))
    ordered = rising.flip(-1)
    up_to = ordered.exp().cumsum(dim=-1, dtype=torch.float64)
    wanted = top_p * up_to.gather(1, top_k - 1)
    needed = torch.searchsorted(up_to, wanted) + 1  # the first whose sum reaches top_p is the last left
    counts = torch.where(top_p < 1, torch.minimum(needed, top_k), top_k)
    places = torch.searchsorted(up_to, noise * up_to.gather(1, counts - 1), right=True)
    places = places.clamp(max=ordered.shape[-1] - 1)  # beyond it only where a row is not finite
    values = ordered.gather(1, places)
    rank = places - (rising.shape[-1] - torch.searchsorted(rising, values, right=True))  # among equals
    return _nth_of(scaled == values, rank[:, 0])


def _largest(scaled: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` largest of each row, rising. numpy's vector sort is 20 times as fast on a CPU as torch's."""
    if scaled.device.type == "cpu":
        ordered = torch.from_numpy(np.sort(scaled.numpy(), axis=-1))
    else:
        ordered = scaled.sort(dim=-1).values
    return ordered[:, -count:].contiguous()


def _nth_of(matches: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """The column of the rank-th True (from 0) of each row, int64 [rows]; 0 for a row that has not so many."""
    found = matches.nonzero()
    starts = torch.searchsorted(found[:, 0].contiguous(), torch.arange(len(matches), device=matches.device))
    found = torch.cat([found, found.new_zeros(1, 2)])
    return found[(starts + rank).clamp(max=len(found) - 1), 1]
