"""Responses of /jobs/{id}."""

from pydantic import BaseModel, Field

from api.schemas.common import ErrorObject, Timing, Usage
from shared.messages import CANCELLED, EXPIRED, FAILED, FINISHED, QUEUED, RUNNING


class JobResponse(BaseModel):
    """All about one job."""

    id: str
    model: str
    status: str = Field(json_schema_extra={"enum": [QUEUED, RUNNING, FINISHED, CANCELLED, EXPIRED, FAILED]})
    text: str = Field(description="The result, or what there is of it so far")
    finish_reason: str | None
    error: ErrorObject | None
    usage: Usage
    timing: Timing
    created_at: float = Field(description="When the job was accepted: seconds since 1970, by Redis' clock")
    deadline_at: float = Field(description="When it expires if it has not ended")
    attempts: int = Field(description="How often a worker has started it")


class CancelResponse(BaseModel):
    """What a cancellation has done."""

    id: str
    status: str = Field(
        description="cancelling: a worker runs the job and drops it at its next step; a job that has ended stays so",
        json_schema_extra={"enum": ["cancelling", CANCELLED, FINISHED, EXPIRED, FAILED]},
    )
