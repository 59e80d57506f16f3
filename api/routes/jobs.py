"""GET and DELETE /jobs/{id}."""

import json
from collections.abc import Mapping

from fastapi import APIRouter

from api.errors import error_object
from api.jobs import Job
from api.results import STATUS_OF_CODE, STATUS_OF_FAILURE, problem_of
from api.routes.docs import errors
from api.schemas.common import ErrorObject, Timing, Usage
from api.schemas.jobs import CancelResponse, JobResponse
from api.services import ServicesDep

router = APIRouter(tags=["jobs"])


@router.get("/jobs/{job_id}", responses=errors(404, 503))
async def read_job(job_id: str, services: ServicesDep) -> JobResponse:
    """A job's state and its text so far. Jobs can be read until some time after their end."""
    return await job_response(await services.jobs.find(job_id))


@router.delete("/jobs/{job_id}", responses=errors(404, 503))
async def cancel_job(job_id: str, services: ServicesDep) -> CancelResponse:
    """Cancel a job. Repeating it, or cancelling a job that has ended, changes nothing."""
    return CancelResponse(id=job_id, status=await services.jobs.cancel(job_id))


async def job_response(job: Job) -> JobResponse:
    """A job as the client sees it."""
    fields = job.fields
    text, num_tokens = await job.progress()
    num_prompt_tokens = int(fields["prompt_tokens"])
    return JobResponse(
        id=job.id,
        model=job.model,
        status=fields["status"],
        text=text,
        finish_reason=fields.get("finish_reason"),
        error=_error(fields),
        usage=Usage(
            prompt_tokens=num_prompt_tokens, completion_tokens=num_tokens, total_tokens=num_prompt_tokens + num_tokens
        ),
        timing=_timing(fields),
        created_at=int(fields["created_at"]) / 1000,
        deadline_at=int(fields["deadline_at"]) / 1000,
        attempts=int(fields["attempts"]),
    )


def _error(fields: Mapping[str, str]) -> ErrorObject | None:
    if "error" not in fields:
        return None
    problem = problem_of(fields["status"], json.loads(fields["error"]))
    status = STATUS_OF_CODE.get(problem["code"], STATUS_OF_FAILURE)
    return ErrorObject(**error_object(problem["message"], status=status, code=problem["code"]))


def _timing(fields: Mapping[str, str]) -> Timing:
    def since_creation(*names: str) -> int | None:
        reached = next((int(fields[name]) for name in names if name in fields), None)
        return None if reached is None else reached - int(fields["created_at"])

    return Timing(
        queued_ms=since_creation("started_at", "finished_at"),
        first_token_ms=since_creation("first_token_at"),
        total_ms=since_creation("finished_at"),
    )
