"""What a run leaves behind: what each client saw, which faults there were, what was left in Redis."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.plan import Request

DONE, ERROR, CUT, LEFT, HUNG = "done", "error", "cut", "left", "hung"


@dataclass(slots=True)
class Chunk:
    """One token event, as its client got it. A plain answer is one chunk a prompt, with text only."""

    at: float
    job_id: str
    index: int
    tokens: tuple[int, ...] | None
    text: str


@dataclass(slots=True)
class Record:
    """One accepted request. `end`: DONE, ERROR, CUT (the connection broke), LEFT (the client hung up), HUNG."""

    request: Request
    api: int
    sent_at: float = 0.0  # the first try
    accepted_at: float = 0.0
    ended_at: float = 0.0
    num_refused: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    end: str = HUNG
    code: str = ""  # of an error; why it was cut
    finish_reason: str = ""
    usage: Any = None
    num_after_end: int = 0  # events after the terminal one
    part_errors: dict[int, str] = field(default_factory=dict)  # codes of failed prompts among several
    cancelled_at: float = 0.0  # when the client first asked for it
    cancel_status: int = 0  # HTTP status of the answer to that

    @property
    def job_ids(self) -> list[str]:
        return list(dict.fromkeys(chunk.job_id for chunk in self.chunks))


@dataclass(slots=True)
class Fault:
    """One fault that was carried out."""

    kind: str
    victim: str
    start: float
    end: float = 0.0  # when what was taken away was there again (a process: when its successor was started)


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as Redis has it after the run."""

    id: str
    number: int
    part: int
    status: str
    error_code: str
    result: str


@dataclass(slots=True)
class Remains:
    """Redis after the run."""

    jobs: list[JobState] = field(default_factory=list)
    dead: list[tuple[str, int]] = field(default_factory=list)  # job id, number of its request
    waiting: int = 0  # entries of the job streams
    pending: int = 0
    without_ttl: list[str] = field(default_factory=list)
    drained_after: float = 0.0  # s after the last fault


@dataclass(slots=True)
class History:
    """All of a run."""

    records: Sequence[Record]
    faults: Sequence[Fault]
    remains: Remains
    is_lossy: bool = False  # Redis was made to lose data
    crashes: Sequence[str] = ()  # processes that ended by themselves, and tracebacks in their logs
