"""`forebay up` as a user runs it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.forebay_process import ForebayProcess
from tests.support.redis_server import free_port

START_TIMEOUT = 300  # s; a first start fetches and converts the model


class Stack:
    """A running `forebay up`."""

    def __init__(self, process: ForebayProcess, url: str) -> None:
        self.process = process
        self.url = url

    @property
    def output(self) -> str:
        return self.process.output

    def client(self) -> httpx.AsyncClient:
        """A client without a limit of connections."""
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, timeout=60, limits=limits, trust_env=False)


@contextmanager
def forebay_up(**settings: str) -> Iterator[Stack]:
    """Start everything and stop it again with one Ctrl-C, which must end cleanly."""
    port = free_port()
    with ForebayProcess("up", settings={"FOREBAY_PORT": str(port)} | settings) as process:
        process.wait_for("Forebay is ready", deadline=START_TIMEOUT)
        yield Stack(process, f"http://127.0.0.1:{port}")
        process.send(signal.SIGINT)
        assert process.wait(60) == 0, process.output


@pytest.fixture(scope="session")
def model_data_dir() -> Path:
    """Where the real model is kept between test runs."""
    return Path(os.environ.get("TEST_MODEL_DATA_DIR") or Path.home() / ".forebay")
