"""POST /generate and POST /generate_stream."""

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from sse_starlette.sse import EventSourceResponse

from api.body import body_docs, json_body
from api.hangup import unless_gone
from api.results import outcome_of
from api.routes.docs import REFUSALS, STREAM
from api.schemas.generate import GenerateRequest, GenerateResponse, GenerateResponses, GenerateStreamRequest
from api.services import ServicesDep
from api.sse import JobStream

router = APIRouter(tags=["generate"])


@router.post("/generate", responses=REFUSALS, openapi_extra=body_docs(GenerateRequest))
async def generate(
    request: Request,
    body: Annotated[GenerateRequest, Depends(json_body(GenerateRequest))],
    services: ServicesDep,
) -> GenerateResponse | GenerateResponses:
    """Generate the continuation of one prompt, or of several in one batch, and answer when all are finished.
    Hanging up cancels what is not finished."""
    param = "prompt" if body.prompts is None else "prompts"
    prompts = body.texts(services.settings.prompts_limit)
    admitted = await services.admission.admit(body, prompts, param=param, stream=False)
    async with services.jobs.submit(admitted) as relays:
        work = (outcome_of(relay, job.model) for relay, job in zip(relays, admitted.requests, strict=True))
        outcomes = await unless_gone(request, asyncio.gather(*work))
    if body.prompts is None:
        return outcomes[0].result()
    return GenerateResponses(results=[outcome.item() for outcome in outcomes])


@router.post(
    "/generate_stream",
    response_class=EventSourceResponse,
    responses=REFUSALS | STREAM,
    openapi_extra=body_docs(GenerateStreamRequest),
)
async def generate_stream(
    body: Annotated[GenerateStreamRequest, Depends(json_body(GenerateStreamRequest))], services: ServicesDep
) -> JobStream:
    """Generate the continuation of one prompt and stream it as server-sent events. Hanging up cancels the job."""
    admitted = await services.admission.admit(body, [body.prompt], param="prompt", stream=True)
    return JobStream(partial(services.jobs.submit, admitted), admitted.requests[0].model, services.settings)
