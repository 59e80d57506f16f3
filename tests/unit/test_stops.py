"""Stop strings over text in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.stops import StopChecker


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """What is sent for each piece and at the end, and whether a stop was found."""
    checker, sent = StopChecker(stops), []
    for piece in pieces:
        text, is_stopped = checker.push(piece)
        sent.append(text)
        if is_stopped:
            return sent, True
    return [*sent, checker.flush()], False


def expected(text: str, stops: list[str]) -> str:
    """Character by character: the text ends at the stop that is complete first, the longest if there are several."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - len(max(matches, key=len))]
    return text


def test_nothing_of_a_stop_is_sent() -> None:
    assert run(["ok", "\nUs", "er", ":", "rest"], ["\nUser:"]) == (["ok", "", "", ""], True)


def test_text_that_cannot_become_a_stop_is_sent_at_once() -> None:
    assert run(["abc", "STO", "X"], ["STOP!"]) == (["abc", "", "STOX", ""], False)


def test_what_was_held_is_sent_at_the_end() -> None:
    assert run(["abc", "ST"], ["STOP!"]) == (["abc", "", "ST"], False)


def test_a_stop_over_four_pieces() -> None:
    assert run(["abcD", "EFG", "HI", "Jk"], ["DEFGHIJ"]) == (["abc", "", "", ""], True)


def test_without_stops_nothing_is_held() -> None:
    assert run(["a", "b"], []) == (["a", "b", ""], False)


@pytest.mark.parametrize("stops", [["ab", "b"], ["b", "ab"]])
def test_of_stops_that_end_together_the_longest_counts(stops: list[str]) -> None:
    assert run(["xab"], stops) == (["x"], True)


def test_the_stop_that_is_complete_first_counts() -> None:
    assert run(["abcd"], ["abcd", "bc"]) == (["a"], True)


@given(
    st.lists(st.text("abc。", max_size=4), max_size=12),
    st.lists(st.text("abc。", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_the_cut_into_pieces_makes_no_difference(pieces: list[str], stops: list[str]) -> None:
    sent, is_stopped = run(pieces, stops)
    text = "".join(pieces)
    assert "".join(sent) == expected(text, stops)
    assert is_stopped == any(stop in text for stop in stops)
