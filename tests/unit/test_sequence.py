"""A row from its first token to its finish reason."""

import pytest

from tests.support.jobs import fake_job
from worker.detokenizer import Vocabulary
from worker.engines.fake import EOS, fake_tokenizer
from worker.sequence import Output, Sequence

VOCABULARY = Vocabulary(fake_tokenizer(["ok", "\nUs", "er", "ST"]).to_str())


def sequence(*, logged: tuple[int, ...] = (), max_tokens: int = 99, **params: object) -> Sequence:
    request = fake_job("a", max_tokens=max_tokens, **params)
    return Sequence(request, "1:x", vocabulary=VOCABULARY, eos_token_ids=frozenset({EOS}), logged=logged)


def run(row: Sequence, ids: list[int]) -> list[Output]:
    outputs = []
    for token in ids:
        outputs.append(row.append([token]))
        if outputs[-1].is_last:
            break
    return outputs


def token(piece: str) -> int:
    found = VOCABULARY.tokenizer.token_to_id(piece) if len(piece) > 1 else ord(piece)
    assert found is not None
    return found


def text(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


@pytest.mark.parametrize(("max_tokens", "expected"), [(1, "A"), (2, "AB"), (3, "ABC")])
def test_the_last_token_is_sent_and_the_reason_is_length(max_tokens: int, expected: str) -> None:
    outputs = run(sequence(max_tokens=max_tokens), list(b"ABCD"))
    assert text(outputs) == expected
    assert [output.finish_reason for output in outputs] == [""] * (max_tokens - 1) + ["length"]


@pytest.mark.parametrize(("max_tokens", "reason"), [(1, "length"), (2, "stop")])
def test_eos_is_a_stop_without_text(max_tokens: int, reason: str) -> None:
    outputs = run(sequence(max_tokens=max_tokens), [65, EOS])
    assert text(outputs) == "A"
    assert outputs[-1].finish_reason == reason


def test_eos_can_be_ignored() -> None:
    outputs = run(sequence(max_tokens=3, ignore_eos=True), [65, EOS, 66])
    assert text(outputs) == "AB"
    assert outputs[-1].finish_reason == "length"


def test_a_stop_string_ends_the_row_and_is_not_sent() -> None:
    outputs = run(sequence(stop=("\nUser:",)), [token("ok"), token("\nUs"), token("er"), 58, 120])
    assert [output.text for output in outputs] == ["ok", "", "", ""]
    assert outputs[-1].finish_reason == "stop"


@pytest.mark.parametrize(("ids", "max_tokens"), [([97, 98, 99, "ST", EOS], 99), ([97, 98, 99, "ST"], 4)])
def test_text_held_for_a_stop_is_sent_at_the_end(ids: list[int | str], max_tokens: int) -> None:
    tokens = [token(item) if isinstance(item, str) else item for item in ids]
    assert text(run(sequence(stop=("STOP!",), max_tokens=max_tokens), tokens)) == "abcST"


def test_an_incomplete_character_is_sent_at_the_end() -> None:
    assert text(run(sequence(max_tokens=3), [97, 0xF0, 0x9F])) == "a\ufffd"


def test_a_stop_that_the_end_completes_counts() -> None:
    outputs = run(sequence(stop=("a\ufffd",), max_tokens=3), [120, 97, 0xF0])
    assert text(outputs) == "x"
    assert outputs[-1].finish_reason == "stop"


def test_a_stop_in_the_prompt_triggers_nothing() -> None:
    request = fake_job("a", "STOP", max_tokens=2, stop=("STOP",))
    row = Sequence(request, "1:x", vocabulary=VOCABULARY, eos_token_ids=frozenset({EOS}))
    assert text(run(row, [97, 98])) == "ab"


def test_tokens_after_the_end_are_dropped() -> None:
    output = sequence(max_tokens=2).append([65, 66, 67, 68])
    assert output == Output("a", "1:x", (65, 66), "AB", "length")


@pytest.mark.parametrize("cut", range(12))
def test_a_resumed_row_sends_what_the_first_one_would_have(cut: int) -> None:
    ids = [*"é🙂".encode(), token("\nUs"), token("er"), *b"xy", EOS]
    whole = run(sequence(stop=("\nUser:",)), ids)
    resumed = run(sequence(stop=("\nUser:",), logged=tuple(ids[:cut])), ids[cut:])
    assert text(whole[:cut]) + text(resumed) == text(whole)


def test_a_row_whose_last_token_was_logged_knows_that_it_is_done() -> None:
    assert sequence(logged=(65, EOS)).finish_reason == "stop"
