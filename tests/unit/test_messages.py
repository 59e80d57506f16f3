"""What the processes exchange survives the way there."""

from hypothesis import given
from hypothesis import strategies as st

from shared.messages import TOKEN, Event, JobRequest, ModelCard, SamplingParams, running_hash

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.lists(st.integers(0, 2**31), max_size=20).map(tuple)


@given(TEXT, IDS, st.lists(TEXT, max_size=3).map(tuple), st.integers(-(2**63), 2**63 - 1))
def test_requests_survive_json(text: str, ids: tuple[int, ...], stop: tuple[str, ...], seed: int) -> None:
    request = JobRequest(text, text, ids, SamplingParams(5, stop=stop), seed, True)
    assert JobRequest.from_json(request.to_json()) == request


@given(TEXT, IDS)
def test_events_survive_the_channel(text: str, ids: tuple[int, ...]) -> None:
    event = Event("job", 3, "1:a", TOKEN, ids, text, 17, "hash", {"finish_reason": None})
    assert Event.from_message(event.to_message("before")) == (event, "before")


def test_the_hash_does_not_depend_on_grouping() -> None:
    one_by_one = running_hash(running_hash("", [1]), [2])
    assert running_hash("", [1, 2]) == one_by_one != running_hash("", [2, 1])


def test_cards_survive_json() -> None:
    card = ModelCard("m", "q", "fake", 10, 20, "sha", 5)
    assert ModelCard.from_json(card.to_json()) == card
