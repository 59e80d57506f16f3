"""From events to the objects that clients see."""

from dataclasses import dataclass
from typing import Any

from api.errors import RETRY_AWAY, ApiError, error_object
from api.relay import Relay
from api.schemas.common import ErrorObject, Timing, Usage
from api.schemas.generate import FailedResult, GenerateResponse
from shared.messages import CANCELLED, EXPIRED, FINISHED, Event

# Never 500: the API works, the job has failed.
STATUS_OF_CODE = {CANCELLED: 409, EXPIRED: 504, "shutting_down": 503, "job_lost": 503, "redis_unavailable": 503}
STATUS_OF_FAILURE = 502


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, with all its text."""

    model: str
    text: str
    end: Event

    def result(self) -> GenerateResponse:
        """Raises ApiError if the job did not finish."""
        if self.end.type != FINISHED:
            raise job_error(self.end)
        return GenerateResponse(
            id=self.end.job_id,
            model=self.model,
            text=self.text,
            finish_reason=self.end.data["finish_reason"],
            usage=Usage(**self.end.data["usage"]),
            timing=Timing(**self.end.data["timing"]),
        )

    def item(self) -> GenerateResponse | FailedResult:
        """The same as an item of several results."""
        if self.end.type == FINISHED:
            return self.result()
        error = ErrorObject(**job_error_object(self.end))
        return FailedResult(id=self.end.job_id, model=self.model, error=error)


async def outcome_of(relay: Relay, model: str) -> Outcome:
    """Read a job to its end."""
    events = [event async for batch in relay.batches() for event in batch]
    return Outcome(model, "".join(event.text for event in events), events[-1])


def job_error(end: Event) -> ApiError:
    """The HTTP error of a job that did not finish."""
    problem = problem_of(end.type, end.data.get("error"))
    status = STATUS_OF_CODE.get(problem["code"], STATUS_OF_FAILURE)
    retry_after = RETRY_AWAY if status == 503 else None
    return ApiError(problem["message"], status=status, code=problem["code"], retry_after=retry_after)


def job_error_object(end: Event) -> dict[str, Any]:
    """The same as it stands under "error" in an SSE frame or an item of several results."""
    error = job_error(end)
    return error_object(str(error), status=error.status, code=error.code)


def problem_of(status: str, error: Any) -> dict[str, str]:
    """Code and message of an end, complete whatever the worker has said."""
    given = error if isinstance(error, dict) else {}
    return {
        "code": str(given.get("code") or ("engine_error" if status == "failed" else status)),
        "message": str(given.get("message") or f"the job has ended as {status}"),
    }
