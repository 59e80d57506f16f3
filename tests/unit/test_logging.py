"""Log lines: an outage must not flood the log."""

import logging

from shared.logging import RepetitionFilter


def record(created: float, *, line: int = 1, level: int = logging.WARNING) -> logging.LogRecord:
    result = logging.LogRecord("name", level, "file.py", line, "job %s failed", ("a",), None)
    result.created = created
    return result


def test_of_equal_warnings_only_a_few_pass_and_the_next_says_how_many_did_not() -> None:
    repetitions = RepetitionFilter(limit=2, period=10)
    assert [repetitions.filter(record(100 + n)) for n in range(5)] == [True, True, False, False, False]
    later = record(110)
    assert repetitions.filter(later)
    assert later.getMessage() == "job a failed (and 3 more like this before)"
    last = record(120)
    assert repetitions.filter(last)
    assert last.getMessage() == "job a failed"


def test_other_warnings_and_what_is_no_warning_pass() -> None:
    repetitions = RepetitionFilter(limit=1)
    assert repetitions.filter(record(100))
    assert repetitions.filter(record(100, line=2))
    assert all(repetitions.filter(record(100, line=3, level=logging.INFO)) for _ in range(5))
