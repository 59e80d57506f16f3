"""A run as text."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.chaos.checker import Violation, count
from tests.chaos.history import CUT, DONE, Fault, History, Record

MAX_SHOWN = 40  # violations printed in full
MIN_PAUSE = 0.15  # s; shorter gaps between two tokens are no pauses
LEAD = 0.1  # s: a gap may begin so long after the fault that made it


def report(history: History, violations: Sequence[Violation]) -> str:
    """The whole report."""
    return "\n".join(
        [
            *_totals(history),
            *_latencies(history.records),
            *_fault_table(history),
            *_remains(history),
            *(f"{kind:>18}: {number}" for kind, number in count(violations).items()),
            *(f"  request {v.number}: {v.kind}: {v.detail}" for v in violations[:MAX_SHOWN]),
        ]
    )


def _totals(history: History) -> Iterator[str]:
    records = history.records
    num_tokens = sum(len(chunk.text if chunk.tokens is None else chunk.tokens) for r in records for chunk in r.chunks)
    ends = Counter(record.code if record.end != DONE else DONE for record in records)
    kinds = Counter(record.request.kind for record in records)
    refused = sum(record.num_refused for record in records)
    yield f"requests {len(records)} ({_list(kinds)}), tokens {num_tokens}, refusals that were tried again {refused}"
    yield f"ends: {_list(ends)}"
    yield f"faults {len(history.faults)} of {len({fault.kind for fault in history.faults})} kinds"


def _latencies(records: Sequence[Record]) -> Iterator[str]:
    done = sorted(record.ended_at - record.sent_at for record in records if record.end == DONE)
    first = sorted(r.chunks[0].at - r.sent_at for r in records if r.chunks and r.request.is_streamed)
    for name, values in (("request", done), ("first token", first)):
        if values:
            yield f"{name}: p50 {_share(values, 0.5):.2f} s, p99 {_share(values, 0.99):.2f} s, max {values[-1]:.2f} s"


def _fault_table(history: History) -> Iterator[str]:
    pauses = pauses_by_kind(history)
    yield f"{'fault':<22}{'times':>6}{'streams that paused':>21}{'p50 s':>7}{'p99 s':>7}{'max s':>7}"
    for kind, number in sorted(Counter(fault.kind for fault in history.faults).items()):
        values = sorted(pauses.get(kind, []))
        text = "".join(f"{_share(values, share):7.2f}" for share in (0.5, 0.99, 1)) if values else ""
        yield f"{kind:<22}{number:>6}{len(values):>21}{text}"
    if values := sorted(pauses.get("", [])):
        yield f"{'(several at once)':<28}{len(values):>21}" + "".join(
            f"{_share(values, share):7.2f}" for share in (0.5, 0.99, 1)
        )


def pauses_by_kind(history: History) -> dict[str, list[float]]:
    """Pauses of streams between two tokens, by the one fault that was there; from its start, or for a Redis that was
    away from when it was back, to the next token. Where there were several, under ''."""
    found: dict[str, list[float]] = defaultdict(list)
    faults = sorted(history.faults, key=lambda fault: fault.start)
    for record in history.records:
        for before, after in zip(record.chunks, record.chunks[1:], strict=False):
            if after.at - before.at >= MIN_PAUSE:
                causes = [f for f in faults if f.start <= after.at and max(f.end, f.start + LEAD) >= before.at]
                if len(causes) == 1:
                    found[causes[0].kind].append(max(after.at - max(before.at, _from(causes[0])), 0))
                elif causes:
                    found[""].append(after.at - before.at)
    return found


def _from(fault: Fault) -> float:
    return fault.end if fault.victim == "redis" else fault.start


def _remains(history: History) -> Iterator[str]:
    remains = history.remains
    cut = sum(record.end == CUT for record in history.records)
    yield f"cut off by the death of their API: {cut}"
    yield (
        f"after the last fault: queue empty after {remains.drained_after:.1f} s, {len(remains.jobs)} jobs known, "
        f"{len(remains.dead)} dead letters, {remains.waiting} entries left, {remains.pending} pending, "
        f"{len(remains.without_ttl)} keys without TTL"
    )


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{name or 'hung up'} {number}" for name, number in counts.most_common())


def _share(values: Sequence[float], share: float) -> float:
    """A percentile of sorted values."""
    return values[min(int(share * len(values)), len(values) - 1)]
