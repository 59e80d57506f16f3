"""A real HTTP server in a thread, for tests that need real sockets (httpx.ASGITransport buffers streams)."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tests.support.eventually import eventually_sync


@contextmanager
def running_server(server: uvicorn.Server) -> Iterator[str]:
    """Serve on a free port of 127.0.0.1; yields the base URL. Shuts down gracefully at the end."""
    sock = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        eventually_sync(lambda: server.started or not thread.is_alive(), "the HTTP server starts")
        assert server.started, "the HTTP server ended while starting"
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        sock.close()
        assert not thread.is_alive(), "the HTTP server did not shut down"
