"""What becomes of the numbers of a request."""

from typing import Any

import pytest

from api.admission import check_prompt, limit_of, sampling_params_of
from api.catalog import Models
from api.errors import ApiError
from api.schemas.generate import GenerateOptions
from shared.errors import InvalidRequestError
from shared.messages import ModelCard, SamplingParams


def card(name: str = "m") -> ModelCard:
    return ModelCard(name, name, "fake", max_model_len=64, vocab_size=100, tokenizer="", updated_at=0)


def params(**options: Any) -> SamplingParams:
    return sampling_params_of(GenerateOptions(**options), 5, card())


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"temperature": 1e-5}, {"temperature": 1e-45}, {"top_p": 0.0}]
)
def test_every_way_to_ask_for_the_likeliest_token_is_greedy(options: dict[str, float]) -> None:
    assert params(**options, top_k=5) == SamplingParams(max_tokens=5, temperature=0)


@pytest.mark.parametrize("top_k", [None, -1, 0, 100, 10**30])
def test_a_top_k_that_excludes_nothing_is_off(top_k: int | None) -> None:
    assert params(top_k=top_k).top_k == 0


def test_other_values_are_kept() -> None:
    assert params(temperature=0.7, top_p=1e-9, top_k=1, stop="x", ignore_eos=True) == SamplingParams(
        max_tokens=5, temperature=0.7, top_p=1e-9, top_k=1, stop=("x",), ignore_eos=True
    )


@pytest.mark.parametrize(("asked", "expected"), [(None, 8), (54, 54), (1, 1)])
def test_max_tokens_that_fit_are_kept(asked: int | None, expected: int) -> None:
    assert limit_of(asked, 10, card(), 8) == expected


def test_the_default_is_what_the_context_leaves_if_that_is_less() -> None:
    assert limit_of(None, 63, card(), 8) == 1


def test_explicit_max_tokens_beyond_the_context_are_refused_with_the_numbers() -> None:
    with pytest.raises(
        InvalidRequestError, match="55 is too much; the prompt has 10 tokens, which leaves 54"
    ) as caught:
        limit_of(55, 10, card(), 8)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("token_ids", "words"),
    [([], "empty"), ([1] * 64, "64 tokens, the context of m is 64"), ([100], "no embedding"), ([1, 100], "embedding")],
)
def test_prompts_that_the_model_cannot_take_are_refused(token_ids: list[int], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        check_prompt(token_ids, card(), "prompts")
    assert caught.value.param == "prompts"


def models(*live: str, dead: tuple[str, ...] = ()) -> Models:
    cards = {name: card(name) for name in (*live, *dead)}
    return Models("default", cards, {name: cards[name] for name in live})


@pytest.mark.parametrize(
    ("live", "asked", "chosen"),
    [(("default", "b"), None, "default"), (("b",), None, "b"), (("default", "b"), "b", "b")],
)
def test_the_model_that_serves_a_request(live: tuple[str, ...], asked: str | None, chosen: str) -> None:
    assert models(*live).choose(asked).name == chosen


@pytest.mark.parametrize(
    ("served", "asked", "status"),
    [
        (models(), None, 503),
        (models(), "b", 503),
        (models("b"), "default", 503),
        (models("b", dead=("c",)), "c", 503),
        (models("b"), "c", 404),
    ],
)
def test_a_model_without_a_worker_is_503_and_an_unknown_one_404(served: Models, asked: str | None, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        served.choose(asked)
    assert caught.value.status == status


def test_jobs_are_looked_for_in_every_queue_and_in_the_default_one() -> None:
    assert sorted(models("b", dead=("c",)).queues) == ["b", "c", "default"]
