"""Rows of the transformers engine against `model.generate`, whatever their neighbours."""

import random
from typing import Any

import pytest
import torch

from shared.errors import InvalidRequestError
from tests.engine.tiny import (
    CONFIGS,
    VOCAB,
    is_done,
    prompts,
    reference,
    request,
    run,
    run_schedule,
    tiny_engine,
    tiny_model,
)
from worker.engines.transformers.engine import TransformersEngine


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_model("llama")


@pytest.fixture
def engine(llama: Any) -> TransformersEngine:
    return tiny_engine(llama)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("chunk", [16, 64])
def test_greedy_rows_equal_generate_while_others_join_and_leave(family: str, chunk: int) -> None:
    model = tiny_model(family)
    engine = tiny_engine(model, max_num_seqs=4, max_num_batched_tokens=chunk)
    dice = random.Random(family)
    lengths = [dice.randrange(1, 30) for _ in range(12)]
    batch = prompts(12)
    expected = [reference(model, prompt, length) for prompt, length in zip(batch, lengths, strict=True)]
    assert len({token for row in expected for token in row}) > 20, "the reference is too plain to prove anything"
    arrivals = [
        (dice.randrange(40), request(f"r{number}", prompt, length))
        for number, (prompt, length) in enumerate(zip(batch, lengths, strict=True))
    ]
    found = run_schedule(engine, arrivals)
    assert [found[f"r{number}"] for number in range(12)] == expected
    assert engine.num_running == 0


@pytest.mark.parametrize("family", CONFIGS)
def test_a_row_alone_equals_the_row_in_a_batch(family: str) -> None:
    engine = tiny_engine(tiny_model(family))
    batch = prompts(6, seed=3)
    together = run(engine, [request(f"r{number}", prompt) for number, prompt in enumerate(batch)])
    alone = {f"r{n}": run(engine, [request(f"r{n}", prompt)])[f"r{n}"] for n, prompt in enumerate(batch)}
    assert alone == together


@pytest.mark.parametrize("cut", [0, 1, 5, 11])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 20, "top_p": 0.9}])
def test_a_resumed_row_goes_on_as_if_nothing_had_happened(
    engine: TransformersEngine, cut: int, params: dict[str, Any]
) -> None:
    prompt = prompts(1, seed=5, low=20)[0]
    whole = run(engine, [request("a", prompt, seed=9, ignore_eos=True, **params)])["a"]
    neighbour = request("n", prompts(1, seed=6)[0], temperature=1.0)
    logged = whole[:cut]
    resumed = run(engine, [neighbour, request("a", prompt, seed=9, ignore_eos=True, logged=logged, **params)])["a"]
    assert resumed == whole


def test_a_seeded_row_is_the_same_in_any_company(engine: TransformersEngine) -> None:
    prompt = prompts(1, seed=7)[0]
    row = request("a", prompt, seed=42, temperature=0.8)
    twin = request("b", prompt, seed=42, temperature=0.8)
    others = [request(f"n{number}", p, seed=number, temperature=1.5) for number, p in enumerate(prompts(4, seed=8))]
    alone = run(engine, [row])["a"]
    both = run(engine, [row, twin])
    assert both["a"] == both["b"] == alone
    assert run(engine, [*others, row])["a"] == alone
    assert run_schedule(engine, [(5, row), *((number, other) for number, other in enumerate(others))])["a"] == alone


def test_different_seeds_give_different_tokens(engine: TransformersEngine) -> None:
    rows = [request(f"s{seed}", [5, 6, 7], seed=seed, temperature=1.5) for seed in range(8)]
    assert len({tuple(tokens) for tokens in run(engine, rows).values()}) > 5


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1e-5},
        {"temperature": 1e-45},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 2.0, "top_p": 1e-9},
        {"temperature": 2.0, "top_p": 0.0},
    ],
)
def test_parameters_that_leave_one_token_are_greedy(engine: TransformersEngine, params: dict[str, Any]) -> None:
    prompt = prompts(1, seed=4)[0]
    found = run(engine, [request("a", prompt), request("b", prompt, **params)])
    assert found["b"] == found["a"]


@pytest.mark.parametrize("top_k", [0, VOCAB, 10**9])
def test_a_top_k_that_leaves_all_is_off(engine: TransformersEngine, top_k: int) -> None:
    prompt = prompts(1, seed=4)[0]
    plain, limited = (
        request("a", prompt, temperature=1.0, seed=3),
        request("b", prompt, temperature=1.0, seed=3, top_k=top_k),
    )
    found = run(engine, [plain, limited])
    assert found["b"] == found["a"]


def test_eos_is_never_sampled_when_it_is_ignored(llama: Any) -> None:
    engine = tiny_engine(llama, max_model_len=250, max_num_seqs=4)
    rows = [request(f"r{n}", p, 200, ignore_eos=True, temperature=2.0, seed=n) for n, p in enumerate(prompts(4))]
    for tokens in run(engine, rows).values():
        assert len(tokens) == 200
        assert 2 not in tokens


def test_ids_that_the_tokenizer_lacks_are_never_sampled(llama: Any) -> None:
    engine = tiny_engine(llama, num_tokens=100)
    rows = [request(f"r{n}", p, 60, ignore_eos=True, temperature=2.0, seed=n) for n, p in enumerate(prompts(4))]
    assert max(token for tokens in run(engine, rows).values() for token in tokens) < 100


def test_the_pad_id_in_a_prompt_is_a_token_like_any_other(llama: Any, engine: TransformersEngine) -> None:
    prompt = [5, 2, 2, 9, 2]  # pad is EOS is 2
    found = run(engine, [request("a", prompt), request("b", prompts(1, low=30)[0])])
    assert found["a"] == reference(llama, prompt, 12)


@pytest.mark.parametrize("token_id", [-1, VOCAB, 999_999])
def test_ids_outside_the_vocabulary_are_refused(engine: TransformersEngine, token_id: int) -> None:
    with pytest.raises(InvalidRequestError):
        engine.add(request("a", [1, token_id]))
    with pytest.raises(InvalidRequestError):
        engine.add(request("a", [1], logged=[token_id]))
    assert engine.num_running == 0


def test_an_empty_prompt_is_refused(engine: TransformersEngine) -> None:
    with pytest.raises(InvalidRequestError):
        engine.add(request("a", []))


def test_more_than_the_context_is_refused(engine: TransformersEngine) -> None:
    run(engine, [request("a", [5] * 127, 1)])
    with pytest.raises(InvalidRequestError, match="129"):
        engine.add(request("b", [5] * 128, 1))


def test_rows_wait_for_blocks_and_all_are_served(llama: Any) -> None:
    engine = tiny_engine(llama, kv_cache_memory=1 << 20, max_model_len=256, max_num_seqs=8)
    rows = [request(f"r{n}", p, 100, ignore_eos=True) for n, p in enumerate(prompts(12, low=60, high=120))]
    free = engine.num_free_blocks
    admitted = 0
    while admitted < len(rows) and engine.can_add(rows[admitted]):
        engine.add(rows[admitted])
        admitted += 1
    assert admitted > 0
    for row in rows[:admitted]:
        engine.abort(row.id)
    assert engine.num_free_blocks == free
    found = run(engine, rows)
    assert all(len(tokens) == 100 for tokens in found.values())
    assert engine.num_free_blocks == free


def test_aborted_rows_give_back_their_blocks_at_any_time(engine: TransformersEngine) -> None:
    free = engine.num_free_blocks
    dice = random.Random(1)
    for number, prompt in enumerate(prompts(60, seed=11, high=60)):
        row = request(f"r{number}", prompt, 20)
        if not engine.can_add(row):
            engine.abort(f"r{dice.randrange(number)}")
        if engine.can_add(row):
            engine.add(row)
        engine.step()
    for number in range(60):
        engine.abort(f"r{number}")
    engine.abort("unknown")
    assert engine.num_free_blocks == free
    assert engine.num_running == 0
    assert engine.step() == []


def test_a_running_row_gets_a_token_in_every_step_while_a_long_prompt_is_prefilled(llama: Any) -> None:
    engine = tiny_engine(llama, max_num_batched_tokens=16)
    short = request("short", [5, 6], 30, ignore_eos=True)
    engine.add(short)
    engine.step()
    engine.add(request("long", [7] * 100, 5))
    tokens: list[int] = []
    while "long" not in (ids := [output.id for output in engine.step()]):
        assert ids == ["short"]
        tokens += [0]
    assert len(tokens) >= 100 // 16
    assert not is_done(short, tokens, engine.info.eos_token_ids)


def test_a_row_of_nan_fails_alone_and_leaves_nothing_behind() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[99] = float("nan")
    engine = tiny_engine(model, num_tokens=99, max_num_seqs=2)
    good = [3, 4, 5] * 7
    expected = run(engine, [request("good", good)])["good"]
    engine.add(request("bad", [5] * 10 + [99] * 30))
    outputs = [output for _ in range(4) for output in engine.step()]
    assert [output.error is not None for output in outputs] == [True]
    assert engine.num_running == 0
    assert run(engine, [request("good", good)])["good"] == expected
    engine.add(request("bad", [99] * 30))
    engine.step()
    engine.abort("bad")  # in the middle of its prompt, before any logits could tell
    assert run(engine, [request("good", good), request("other", good)])["other"] == expected


def test_a_row_that_is_not_removed_stops_at_its_limit(engine: TransformersEngine) -> None:
    engine.add(request("a", [5] * 14, 2, ignore_eos=True))
    assert [len(engine.step()) for _ in range(5)] == [1, 1, 0, 0, 0]


def test_an_id_that_is_running_is_refused(engine: TransformersEngine) -> None:
    free = engine.num_free_blocks
    engine.add(request("a", [5, 6]))
    with pytest.raises(InvalidRequestError, match="'a'"):
        engine.add(request("a", [5, 6]))
    engine.abort("a")
    assert engine.num_free_blocks == free
