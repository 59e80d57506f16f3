"""The next token of each row. The noise of a token is one uniform number that depends on (seed, position) alone, put
through the inverse of the row's cumulative distribution: neighbours, row numbers and restarts change nothing."""

from collections.abc import Sequence
from hashlib import blake2b

import torch

from worker.engines.transformers.scheduler import Row

GREEDY_TEMPERATURE = 1e-5  # at or below it the most likely token is taken (as vLLM does)
TOP_P_CANDIDATES = 1024  # top_p looks at so many likely tokens first; a full sort is rarely needed


def uniform(seed: int, position: int) -> float:
    """In [0, 1), from the row's seed and the number of the output token."""
    digest = blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


class Sampler:
    """`num_tokens`: ids at or beyond it are never sampled (embeddings may be padded beyond the tokenizer)."""

    def __init__(self, *, num_tokens: int, eos_token_ids: Sequence[int], device: torch.device) -> None:
        self._num_tokens = num_tokens
        self._eos = torch.tensor(sorted(eos_token_ids), dtype=torch.long, device=device)

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        """logits [rows, vocabulary], any float dtype -> a token id for each row."""
        logits = logits[:, : self._num_tokens].float()
        self._mask_eos(logits, rows)
        tokens = logits.argmax(dim=-1).tolist()
        for number, row in enumerate(rows):
            if row.sampling_params.temperature > GREEDY_TEMPERATURE:
                tokens[number] = _draw(logits[number], row)
        return [int(token) for token in tokens]

    def _mask_eos(self, logits: torch.Tensor, rows: Sequence[Row]) -> None:
        ignoring = [number for number, row in enumerate(rows) if row.sampling_params.ignore_eos]
        if ignoring and len(self._eos):
            logits[torch.tensor(ignoring, device=logits.device)[:, None], self._eos] = float("-inf")


def _draw(logits: torch.Tensor, row: Row) -> int:
    """One token of logits [vocabulary], float32."""
    params = row.sampling_params
    noise = uniform(row.seed, row.num_output_tokens)
    scaled = (logits - logits.max()) / params.temperature
    top_k = params.top_k if 0 < params.top_k < len(scaled) else 0
    if not top_k and params.top_p >= 1:
        return _pick(scaled.softmax(dim=-1), noise)
    probs, tokens = _most_likely(scaled, top_k, params.top_p)
    return int(tokens[_pick(probs, noise)])


def _most_likely(scaled: torch.Tensor, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and ids of the tokens that top_k and then top_p leave, most likely first. At least one is left."""
    values, tokens = scaled.topk(top_k or min(TOP_P_CANDIDATES, len(scaled)))
    total = values.logsumexp(dim=-1) if top_k else scaled.logsumexp(dim=-1)
    probs = (values - total).exp()
    before = probs.cumsum(dim=-1, dtype=torch.float64) - probs  # what more likely tokens have together
    if not top_k and len(values) < len(scaled) and float(before[-1] + probs[-1]) < top_p:
        values, tokens = scaled.sort(descending=True, stable=True)
        probs = (values - total).exp()
        before = probs.cumsum(dim=-1, dtype=torch.float64) - probs
    kept = max(1, int((before < top_p).sum()))
    return probs[:kept], tokens[:kept]


def _pick(probs: torch.Tensor, noise: float) -> int:
    """Index where the cumulative distribution passes `noise`. A token without probability is never picked."""
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    index = int(torch.searchsorted(cumulative, noise * cumulative[-1], right=True))
    return min(index, int((probs > 0).nonzero()[-1]))
