"""Builds the ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI

from api.errors import install_error_handlers
from api.middleware import BodyLimitMiddleware, RequestIdMiddleware
from api.routes import generate, health, jobs
from api.services import open_services
from api.settings import ApiSettings

DESCRIPTION = "A Redis-backed job queue for LLM inference: batched workers, token streams that survive any process."


def create_app(settings: ApiSettings) -> FastAPI:
    """The application; its parts are built when it starts up, and are at `app.state.services` from then on."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(settings) as services:
            app.state.services = services
            yield

    app = FastAPI(title="Forebay", description=DESCRIPTION, version=_version(), lifespan=lifespan)
    install_error_handlers(app)
    app.add_middleware(BodyLimitMiddleware, max_body_size=settings.max_body_size)
    app.add_middleware(RequestIdMiddleware)  # added last: outermost
    for module in (generate, jobs, health):
        app.include_router(module.router)
    return app


def _version() -> str:
    try:
        return version("forebay")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
