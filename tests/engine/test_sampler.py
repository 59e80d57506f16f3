"""The sampler on made-up logits."""

import math
from collections import Counter
from typing import Any

import pytest
import torch

from shared.messages import SamplingParams
from worker.engines.transformers.sampler import Sampler
from worker.engines.transformers.scheduler import Row

SIZE = 2000


def row(seed: int = 1, **params: Any) -> Row:
    return Row("r", 0, [0], 1, SamplingParams(8, **params), seed)


def sampler(size: int = SIZE) -> Sampler:
    return Sampler(num_tokens=size, eos_token_ids=[2], device=torch.device("cpu"))


def random_logits(rows: int, *, spread: float = 2.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed)) * spread


def test_a_row_is_sampled_alone_as_in_any_batch() -> None:
    kinds = [{}, {"top_k": 5}, {"top_k": 600}, {"top_p": 0.9}, {"top_p": 0.999}, {"top_k": 50, "top_p": 0.5}]
    rows = [row(seed, temperature=0.3 + seed / 20, **kinds[seed % len(kinds)]) for seed in range(36)]
    logits = random_logits(36, spread=0.5)
    together = sampler().sample(logits.clone(), rows)
    assert together == [sampler().sample(logits[n : n + 1].clone(), [rows[n]])[0] for n in range(36)]
    backwards = sampler().sample(logits.flip(0), rows[::-1])
    assert together == backwards[::-1]


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-9}, {"top_p": 0.0}, {"temperature": 1e-45}])
def test_what_leaves_one_token_is_greedy_also_among_equals(params: dict[str, Any]) -> None:
    """bfloat16 logits are often equal."""
    logits = random_logits(20).round().to(torch.bfloat16)
    greedy = sampler().sample(logits, [row(temperature=0.0)] * 20)
    assert sampler().sample(logits, [row(seed, **{"temperature": 1.0} | params) for seed in range(20)]) == greedy


def kept(logits: list[float], **params: Any) -> Counter[int | None]:
    batch = torch.tensor([logits]).log().expand(4000, -1).clone()
    return Counter(sampler(len(logits)).sample(batch, [row(seed, **params) for seed in range(4000)]))


def test_tokens_come_as_often_as_they_should() -> None:
    found = kept([0.5, 0.2, 0.2, 0.1], temperature=1.0)
    for token, share in enumerate([0.5, 0.2, 0.2, 0.1]):
        assert math.isclose(found[token] / 4000, share, abs_tol=0.03)


@pytest.mark.parametrize(
    ("params", "tokens"),
    [
        ({"top_k": 2}, {0, 1}),  # 1 and 2 are equal: the lower id
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.95}, {0, 1, 2, 3}),
        ({"top_k": 3, "top_p": 0.7}, {0, 1}),  # of the 0.9 that top_k leaves, 0.63
        ({"top_p": 1.0}, {0, 1, 2, 3}),
    ],
)
def test_the_tokens_that_top_k_and_top_p_leave(params: dict[str, Any], tokens: set[int]) -> None:
    assert set(kept([0.5, 0.2, 0.2, 0.1], temperature=1.0, **params)) == tokens


def test_of_a_flat_distribution_top_p_leaves_its_share() -> None:
    logits = torch.zeros(500, SIZE)
    found = sampler().sample(logits, [row(seed, temperature=1.0, top_p=0.5) for seed in range(500)])
    assert SIZE * 0.45 < max(token for token in found if token is not None) < SIZE / 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}])
def test_a_row_that_is_not_finite_gets_nothing_and_the_others_their_tokens(
    value: float, params: dict[str, Any]
) -> None:
    logits = random_logits(3)
    expected = sampler().sample(logits.clone(), [row(**params)] * 3)
    logits[1, 7] = value
    assert sampler().sample(logits, [row(**params)] * 3) == [expected[0], None, expected[2]]


def test_a_row_without_any_token_left_gets_nothing() -> None:
    logits = torch.full((1, SIZE), float("-inf"))
    assert sampler().sample(logits, [row(temperature=1.0)]) == [None]
