"""Judges a run by what its clients saw, and by what is left in Redis. Pure: no clock, no Redis, no processes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.history import CUT, DONE, ERROR, HUNG, LEFT, Fault, History, JobState, Record, Remains
from tests.chaos.plan import CANCEL, POISON, PROMPTS, Request

LOST, DOUBLED, SKIPPED, MIXED = "lost", "doubled", "skipped", "mixed"
WRONG_END, LEAKED, DEAD, CRASHED = "wrong end", "leaked", "wrong dead letter", "crashed"
VIOLATIONS = (LOST, DOUBLED, SKIPPED, MIXED, HUNG, WRONG_END, LEAKED, DEAD, CRASHED)

PROBE = 8  # tokens that are looked up elsewhere in the right list to tell doubled, skipped and mixed apart
CUT_SLACK = 1.0  # s between the end of an API process and that of the last connection it had
API_FAULTS = ("api_kill", "api_term")
CUT_CODES = ("shutting_down", "closed", "reset")


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that was broken."""

    kind: str
    number: int  # of the request, -1: none
    detail: str


def check(history: History) -> list[Violation]:
    """All violations of a run."""
    found = [violation for record in history.records for violation in _check_record(record, history)]
    crashes = [Violation(CRASHED, -1, crash) for crash in history.crashes]
    return [*found, *_check_remains(history), *crashes]


def count(violations: Sequence[Violation]) -> dict[str, int]:
    """How many of each kind, zeros included."""
    counts = Counter(violation.kind for violation in violations)
    return {kind: counts[kind] for kind in VIOLATIONS}


def _check_record(record: Record, history: History) -> Iterator[Violation]:
    number = record.request.number
    for kind, detail in (*_check_tokens(record), *_check_end(record, history.faults, is_lossy=history.is_lossy)):
        yield Violation(kind, number, f"{record.request.kind}: {detail}")


def _check_tokens(record: Record) -> Iterator[tuple[str, str]]:
    if record.request.kind == PROMPTS:
        yield from _check_parts(record)
        return
    if len(record.job_ids) > 1:
        yield MIXED, f"events of {len(record.job_ids)} jobs: {record.job_ids}"
    got: list[int] = []
    for chunk in record.chunks:
        tokens = tuple(chunk.text.encode()) if chunk.tokens is None else chunk.tokens
        if chunk.index != len(got):
            yield (SKIPPED if chunk.index > len(got) else DOUBLED), f"index {chunk.index} after {len(got)} tokens"
        got += tokens
    yield from _compare(got, _right(record.request, 0, got, is_text=not record.request.is_streamed))


def _check_parts(record: Record) -> Iterator[tuple[str, str]]:
    for chunk in record.chunks:
        got = list(chunk.text.encode())
        yield from _compare(got, _right(record.request, chunk.index, got, is_text=True))
        if len(chunk.text) < len(record.request.expected[chunk.index]):
            yield SKIPPED, f"part {chunk.index} ends after {len(chunk.text)} tokens"


def _right(request: Request, part: int, got: Sequence[int], *, is_text: bool) -> Sequence[int]:
    """The right tokens, given those that came; of a text, those that show."""
    tokens = request.right_tokens(part, got)
    return [token for token in tokens if token < 256] if is_text else tokens


def _compare(got: Sequence[int], right: Sequence[int]) -> Iterator[tuple[str, str]]:
    """The first difference between what came and what is right, if there is one. Too few tokens are judged with the
    end."""
    at = next((i for i, token in enumerate(got) if i >= len(right) or token != right[i]), None)
    if at is not None:
        yield _kind_of(got[at : at + PROBE], right, at), f"token {at} of {len(right)} is wrong"


def _kind_of(probe: Sequence[int], right: Sequence[int], at: int) -> str:
    places = [i for i in range(len(right)) if list(right[i : i + len(probe)]) == list(probe)]
    if not places:
        return MIXED
    return DOUBLED if min(places, key=lambda place: abs(place - at)) < at else SKIPPED


def _check_end(record: Record, faults: Sequence[Fault], *, is_lossy: bool) -> Iterator[tuple[str, str]]:
    if record.num_after_end:
        yield WRONG_END, f"{record.num_after_end} events after the end"
    if record.cancel_status == 404 and not is_lossy:
        yield LOST, "the job to cancel is unknown"
    match record.end:
        case end if end == HUNG:
            yield HUNG, f"no end after {len(record.chunks)} events"
        case end if end == CUT or record.code in CUT_CODES:
            if not _is_excused(record, faults):
                yield LOST, f"the stream just stopped ({record.code})"
        case end if end == DONE:
            yield from _check_done(record)
        case end if end == ERROR:
            yield from _check_error(record)
        case end if end != LEFT:
            yield WRONG_END, f"unknown end {end}"


def _is_excused(record: Record, faults: Sequence[Fault]) -> bool:
    """Whether the API process that served the client was ended just then."""
    victim = f"api{record.api}"
    return any(
        fault.kind in API_FAULTS and fault.victim == victim and fault.start <= record.ended_at <= fault.end + CUT_SLACK
        for fault in faults
    )


def _check_done(record: Record) -> Iterator[tuple[str, str]]:
    request = record.request
    if request.kind == POISON:
        yield WRONG_END, "a poison job has finished"
    elif request.kind == PROMPTS:
        yield from _check_done_parts(record)
    else:
        length = sum(len(chunk.text if chunk.tokens is None else chunk.tokens) for chunk in record.chunks)
        right = len(_right(request, 0, (), is_text=not request.is_streamed))
        if length < right:
            yield SKIPPED, f"done after {length} of {right} tokens"
        if record.finish_reason != request.finish_reason:
            yield WRONG_END, f"finish reason {record.finish_reason!r}"
        if record.usage["completion_tokens"] != len(request.expected[0]):
            yield WRONG_END, f"usage says {record.usage['completion_tokens']} of {len(request.expected[0])} tokens"


def _check_done_parts(record: Record) -> Iterator[tuple[str, str]]:
    for part in range(len(record.request.prompts)):
        code = record.part_errors.get(part)
        if code in CUT_CODES:
            continue  # judged by the API's fault, as a cut
        if code is not None:
            yield (LOST if code == "job_lost" else WRONG_END), f"part {part} ended with {code}"
        elif sum(chunk.index == part for chunk in record.chunks) != 1:
            yield WRONG_END, f"part {part} has not exactly one result"


def _check_error(record: Record) -> Iterator[tuple[str, str]]:
    kind, code = record.request.kind, record.code
    if code == "job_lost":
        yield LOST, "job_lost"
    elif kind == POISON and code == "poison":
        length = sum(len(chunk.tokens or ()) for chunk in record.chunks)
        if length > len(record.request.expected[0]):
            yield WRONG_END, "tokens after the one that kills"
    elif not (kind == CANCEL and code == "cancelled" and record.cancelled_at):
        yield WRONG_END, f"error {code!r}"


def _check_remains(history: History) -> Iterator[Violation]:
    remains = history.remains
    if remains.waiting or remains.pending:
        yield Violation(LEAKED, -1, f"{remains.waiting} entries in the job streams, {remains.pending} pending")
    for key in remains.without_ttl:
        yield Violation(LEAKED, -1, f"key without TTL: {key}")
    records = {record.request.number: record for record in history.records}
    for job in remains.jobs:
        yield from _check_job(job, records.get(job.number), is_lossy=history.is_lossy)
    yield from _check_known(history)
    yield from _check_dead(remains, records, is_lossy=history.is_lossy)


def _check_job(job: JobState, record: Record | None, *, is_lossy: bool) -> Iterator[Violation]:
    """Every job that Redis knows has ended as it should, whether or not a client was there to see it."""
    if record is None:
        yield Violation(MIXED, job.number, f"job {job.id} belongs to no request")
    elif job.status not in ("finished", "cancelled", "expired", "failed"):
        yield Violation(LOST, job.number, f"{record.request.kind}: job {job.id} is left {job.status}")
    elif job.status == "finished":
        yield from _check_result(job, record, is_lossy=is_lossy)
    elif job.status == "failed" and not (job.error_code == "poison" and record.request.kind == POISON):
        yield Violation(WRONG_END, job.number, f"{record.request.kind}: job {job.id} has failed: {job.error_code}")
    elif job.status == "expired":
        yield Violation(WRONG_END, job.number, f"{record.request.kind}: job {job.id} has expired")


def _check_result(job: JobState, record: Record, *, is_lossy: bool) -> Iterator[Violation]:
    """A Redis that has lost the end of a job after its client was gone makes another one, as good as the first."""
    got = list(job.result.encode())
    right = _right(record.request, job.part, got, is_text=True)
    if got != right:
        kind = next(_compare(got, right), (SKIPPED, ""))[0]
        yield Violation(kind, job.number, f"{record.request.kind}: the result of job {job.id} is wrong")
    seen = "".join(chunk.text for chunk in record.chunks if chunk.job_id == job.id)
    if record.request.is_random and not is_lossy and not job.result.startswith(seen):
        yield Violation(MIXED, job.number, f"{record.request.kind}: the client of job {job.id} saw something else")


def _check_known(history: History) -> Iterator[Violation]:
    """Every job that a client knows of is known to Redis; one whose client was cut off by its API has gone on."""
    if history.is_lossy:
        return
    jobs = {job.id: job for job in history.remains.jobs}
    for record in history.records:
        for job_id in record.job_ids:
            job = jobs.get(job_id)
            if job is None:
                yield Violation(LOST, record.request.number, f"{record.request.kind}: job {job_id} is unknown")
            elif record.end == CUT and job.status == "cancelled" and record.request.kind != CANCEL:
                yield Violation(WRONG_END, record.request.number, f"job {job_id}: an API's death has cancelled it")


def _check_dead(remains: Remains, records: dict[int, Record], *, is_lossy: bool) -> Iterator[Violation]:
    for job_id, number in remains.dead:
        record = records.get(number)
        if record is None or record.request.kind != POISON:
            yield Violation(DEAD, number, f"job {job_id} is innocent")
    ids = {job_id for job_id, _ in remains.dead}
    if len(ids) != len(remains.dead):
        yield Violation(DEAD, -1, "a job is there twice")
    for job in remains.jobs if not is_lossy else ():
        if job.error_code == "poison" and job.id not in ids:
            yield Violation(DEAD, job.number, f"poison job {job.id} is missing")
