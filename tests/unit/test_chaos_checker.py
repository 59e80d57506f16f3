"""The checker of the chaos runs can fail: one hand-made bad history for each kind of violation."""

from collections.abc import Callable, Sequence
from itertools import islice

import pytest

from tests.chaos.checker import (
    CRASHED,
    DEAD,
    DOUBLED,
    HUNG,
    LEAKED,
    LOST,
    MIXED,
    SKIPPED,
    WRONG_END,
    check,
    count,
)
from tests.chaos.history import CUT, DONE, ERROR, LEFT, Chunk, Fault, History, JobState, Record, Remains
from tests.chaos.plan import ABANDON, CANCEL, PLAIN, POISON, PROMPTS, STREAM, Request, requests
from tests.support.jobs import prompt_ids
from worker.engines.fake import chain_tokens

RIGHT = tuple(range(40, 60))


def request_of(kind: str = STREAM, *, parts: int = 1) -> Request:
    return Request(7, kind, ("{}",) * parts, len(RIGHT), 1, (RIGHT,) * parts)


def streamed(tokens: Sequence[int] = RIGHT, *, kind: str = STREAM, end: str = DONE, code: str = "") -> Record:
    """A stream of one token an event."""
    chunks = [Chunk(float(i), "job", i, (token,), chr(token)) for i, token in enumerate(tokens)]
    usage = {"completion_tokens": len(RIGHT)}
    return Record(
        request_of(kind), 0, ended_at=30.0, chunks=chunks, end=end, code=code, finish_reason="length", usage=usage
    )


def job(status: str = "finished", *, code: str = "", result: str | None = None, job_id: str = "job") -> JobState:
    text = "".join(map(chr, RIGHT)) if result is None else result
    return JobState(job_id, 7, 0, status, code, text if status == "finished" else "")


def found(
    record: Record,
    *,
    jobs: Sequence[JobState] = (job(),),
    faults: Sequence[Fault] = (),
    dead: Sequence[tuple[str, int]] = (),
    **remains: int,
) -> set[str]:
    """Kinds of violations of a run with one request."""
    left = Remains(list(jobs), list(dead), **remains)
    return {violation.kind for violation in check(History([record], faults, left))}


def test_a_right_history_has_no_violations() -> None:
    assert found(streamed()) == set()
    cancelled = streamed(RIGHT[:5], kind=CANCEL, end=ERROR, code="cancelled")
    cancelled.cancelled_at = 4.0
    assert found(cancelled, jobs=[job("cancelled")]) == set()
    assert found(streamed(RIGHT[:5], kind=ABANDON, end=LEFT), jobs=[job("cancelled")]) == set()
    poisoned = streamed(RIGHT[:3], kind=POISON, end=ERROR, code="poison")
    assert found(poisoned, jobs=[job("failed", code="poison")], dead=[("job", 7)]) == set()


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [
        ((*RIGHT[:5], *RIGHT[4:]), DOUBLED),
        ((*RIGHT[:10], *RIGHT[5:]), DOUBLED),
        ((*RIGHT, RIGHT[-1]), DOUBLED),
        ((*RIGHT[:5], *RIGHT[6:]), SKIPPED),
        (RIGHT[:-1], SKIPPED),
        ((*RIGHT[:5], 99, *RIGHT[6:]), MIXED),
        ((*RIGHT[:5], *range(100, 115)), MIXED),
    ],
)
def test_wrong_tokens(tokens: Sequence[int], kind: str) -> None:
    assert kind in found(streamed(tokens))


def random_request() -> tuple[Request, Callable[[], list[int]]]:
    """A request whose tokens differ from attempt to attempt, and a function that makes an attempt."""
    request = next(r for r in requests(1, 100) if r.is_random and r.kind == STREAM and len(r.expected[0]) > 40)
    prompt, length = prompt_ids(request.prompts[0]), len(request.expected[0])
    return request, lambda: list(islice(chain_tokens(prompt, request.seed, is_random=True), length))


def test_a_splice_of_random_tokens() -> None:
    """Nobody could know them before, yet what goes on from others shows."""
    request, attempt = random_request()
    first, second = attempt(), attempt()
    assert first != second
    for tokens, kinds in ((first, set()), (first[:20] + second[20:], {MIXED}), (first[:5] + first[4:-1], {MIXED})):
        record = streamed(tokens)
        record.request, record.usage = request, {"completion_tokens": len(first)}
        assert {violation.kind for violation in check(History([record], [], Remains()))} - {LOST} == kinds


def test_a_client_that_saw_something_else_than_the_result() -> None:
    request, attempt = random_request()
    record = streamed(attempt()[:30], kind=ABANDON, end=LEFT)
    record.request = request
    result = "".join(map(chr, attempt()))
    state = JobState("job", request.number, 0, "finished", "", result)
    assert [violation.kind for violation in check(History([record], [], Remains([state])))] == [MIXED]


def test_indices_that_do_not_count_the_tokens() -> None:
    doubled, skipped = streamed(), streamed()
    doubled.chunks[5].index = 4
    skipped.chunks[5].index = 6
    assert (found(doubled), found(skipped)) == ({DOUBLED}, {SKIPPED})


def test_an_event_of_another_job() -> None:
    record = streamed()
    record.chunks[3].job_id = "other"
    assert MIXED in found(record, jobs=[job(), job(job_id="other")])


def test_a_wrong_plain_answer() -> None:
    record = streamed()
    record.request = request_of(PLAIN)
    record.chunks = [Chunk(1.0, "job", 0, None, "".join(map(chr, RIGHT[:-1])))]
    assert found(record) == {SKIPPED}


def test_answers_to_several_prompts_in_the_wrong_order() -> None:
    other = tuple(reversed(RIGHT))
    record = Record(Request(7, PROMPTS, ("{}",) * 2, 20, 1, (RIGHT, other)), 0, end=DONE)
    record.chunks = [Chunk(1.0, f"job{i}", i, None, "".join(map(chr, t))) for i, t in enumerate((other, RIGHT))]
    assert MIXED in found(record, jobs=[job(job_id="job0"), job(job_id="job1")])


def test_a_prompt_of_several_without_an_answer() -> None:
    record = Record(request_of(PROMPTS, parts=2), 0, end=DONE)
    record.chunks = [Chunk(1.0, "job", 0, None, "".join(map(chr, RIGHT)))]
    assert found(record) == {WRONG_END}
    record.part_errors[1] = "job_lost"
    assert found(record) == {LOST}


def test_a_stream_that_just_stops_is_lost_unless_its_api_died() -> None:
    record = streamed(RIGHT[:5], end=CUT, code="reset")
    assert found(record) == {LOST}
    assert found(record, faults=[Fault("worker_kill", "api0", 29.0, 31.0)]) == {LOST}
    assert found(record, faults=[Fault("api_kill", "api1", 29.0, 31.0)]) == {LOST}
    assert found(record, faults=[Fault("api_kill", "api0", 20.0, 21.0)]) == {LOST}
    assert found(record, faults=[Fault("api_kill", "api0", 29.5, 29.9)]) == set()


def test_a_job_whose_api_died_must_go_on() -> None:
    record = streamed(RIGHT[:5], end=CUT, code="reset")
    fault = Fault("api_kill", "api0", 29.0, 31.0)
    assert found(record, faults=[fault], jobs=[job("cancelled")]) == {WRONG_END}
    assert found(record, faults=[fault], jobs=[job("running")]) == {LOST}
    assert found(record, faults=[fault], jobs=[]) == {LOST}


def test_a_stream_without_end_hangs() -> None:
    assert found(streamed(RIGHT[:5], end=HUNG)) == {HUNG}


@pytest.mark.parametrize(
    ("kind", "end", "code", "violation"),
    [
        (STREAM, ERROR, "job_lost", LOST),
        (STREAM, ERROR, "poison", WRONG_END),
        (STREAM, ERROR, "cancelled", WRONG_END),
        (STREAM, ERROR, "engine_error", WRONG_END),
        (POISON, DONE, "", WRONG_END),
        (CANCEL, ERROR, "cancelled", WRONG_END),  # before the client asked for it
    ],
)
def test_wrong_ends(kind: str, end: str, code: str, violation: str) -> None:
    assert violation in found(streamed(RIGHT, kind=kind, end=end, code=code))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: setattr(record, "num_after_end", 1),
        lambda record: setattr(record, "finish_reason", "stop"),
        lambda record: setattr(record, "usage", {"completion_tokens": 3}),
    ],
)
def test_other_wrong_ends(spoil: Callable[[Record], None]) -> None:
    record = streamed()
    spoil(record)
    assert found(record) == {WRONG_END}


def test_a_job_to_cancel_that_nobody_knows() -> None:
    record = streamed(kind=CANCEL)
    record.cancel_status = 404
    assert found(record) == {LOST}


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (job("running"), LOST),
        (job("queued"), LOST),
        (job("expired"), WRONG_END),
        (job("failed", code="engine_error"), WRONG_END),
        (job("failed", code="poison"), DEAD),
        (job(result="".join(map(chr, RIGHT[:-1]))), SKIPPED),
        (job(result="something else"), MIXED),
    ],
)
def test_jobs_in_a_wrong_state(state: JobState, kind: str) -> None:
    assert kind in found(streamed(), jobs=[state])


def test_a_job_of_nobody() -> None:
    stranger = JobState("x", 8, 0, "finished", "", "")
    assert found(streamed(), jobs=[job(), stranger]) == {MIXED}


def test_what_is_left_over() -> None:
    assert found(streamed(), waiting=1) == {LEAKED}
    assert found(streamed(), pending=1) == {LEAKED}
    history = History([streamed()], [], Remains([job()], without_ttl=["forebay:x"]), crashes=["worker0 ended with 1"])
    assert {violation.kind for violation in check(history)} == {LEAKED, CRASHED}


def test_dead_letters() -> None:
    assert found(streamed(), dead=[("job", 7)]) == {DEAD}  # innocent
    poisoned = streamed(RIGHT[:3], kind=POISON, end=ERROR, code="poison")
    state = job("failed", code="poison")
    assert found(poisoned, jobs=[state]) == {DEAD}  # missing
    assert found(poisoned, jobs=[state], dead=[("job", 7), ("job", 7)]) == {DEAD}  # twice


def test_the_count_names_every_kind() -> None:
    counts = count(check(History([streamed((*RIGHT[:5], *RIGHT[4:]))], [], Remains([job()]))))
    assert counts.pop(DOUBLED) == 1
    assert set(counts.values()) == {0}
