"""Runs one API process."""

import asyncio
import logging
import math
import signal
import socket
import threading

import uvicorn
from fastapi import FastAPI

from api.app import create_app
from api.services import Services, connect_redis
from api.settings import ApiSettings
from api.sse import SHUTDOWN_MARGIN
from shared.errors import ForebayError
from shared.logging import configure_logging

logger = logging.getLogger(__name__)

BACKLOG = 2048


class Server(uvicorn.Server):
    """Lets requests go on for a while when it is told to stop, and then ends them with a word to their clients."""

    def __init__(self, app: FastAPI, settings: ApiSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=settings.log_level == "debug",
                server_header=False,
                lifespan="on",
                ws="none",
                # Streams end themselves by then; this is for readers that block even the last frame.
                timeout_graceful_shutdown=math.ceil(settings.shutdown_grace + 2 * SHUTDOWN_MARGIN),
            )
        )
        self._app = app
        self._grace = settings.shutdown_grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        services: Services = self._app.state.services
        asyncio.get_running_loop().call_later(self._grace, services.hub.close)
        await super().shutdown(sockets)


def serve(settings: ApiSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises ForebayError if the address or the Redis URL cannot be used."""
    configure_logging(settings)
    connect_redis(settings)
    with listen(settings.host, settings.port) as sock:
        server = Server(create_app(settings), settings)
        logger.info("listening on %s", url_of(sock))
        _stop_quietly_on_sigterm()
        try:
            server.run(sockets=[sock])
        except KeyboardInterrupt:
            logger.info("stopped")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ForebayError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ForebayError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None


def url_of(sock: socket.socket) -> str:
    """The address of a listening socket as a URL."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _stop_quietly_on_sigterm() -> None:
    """uvicorn raises the signal again once it has shut down; without a handler that would look like a crash."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
