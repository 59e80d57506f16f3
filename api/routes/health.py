"""GET /health/live and GET /health/ready."""

import asyncio

from fastapi import APIRouter

from api.errors import ApiError
from api.routes.docs import errors
from api.schemas.health import LiveResponse, ReadyResponse
from api.services import ServicesDep

router = APIRouter(prefix="/health", tags=["health"])

READY_TIMEOUT = 1.0  # s: shorter than the patience of the usual probes


@router.get("/live")
async def live() -> LiveResponse:
    """This process runs."""
    return LiveResponse(status="ok")


@router.get("/ready", responses=errors(503))
async def ready(services: ServicesDep) -> ReadyResponse:
    """Jobs can be served now: Redis answers, this process hears it, and a worker is alive."""
    try:
        async with asyncio.timeout(READY_TIMEOUT):
            models = await services.catalog.models()
    except TimeoutError:
        raise ApiError.unavailable("Redis does not answer", "redis_unavailable") from None
    if not services.hub.is_connected:
        raise ApiError.unavailable("the subscription to Redis is being set up", "hub_disconnected")
    if not models.live:
        raise ApiError.unavailable("no worker is alive", "no_worker")
    return ReadyResponse(status="ready", models=sorted(models.live))
