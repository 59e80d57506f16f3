"""`forebay up` as a child, for the benchmarks."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

START_TIMEOUT = 300.0  # s; a first start fetches the model
STOP_TIMEOUT = 30.0


@contextmanager
def local_server(log: Path, **settings: str) -> Iterator[str]:
    """Start everything on free ports; yields the API's URL. `log` gets the output; settings are FOREBAY_* variables."""
    port = free_port()
    environment = os.environ | {"FOREBAY_PORT": str(port)} | settings
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "cli", "up"], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_ready(process, url, log)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_TIMEOUT)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"forebay up did not become ready; its log ends:\n{log.read_text()[-2000:]}")
