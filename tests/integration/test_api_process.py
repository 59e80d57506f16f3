"""The API as a real process: SIGTERM, and what keeps it from starting."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.support.eventually import eventually
from tests.support.forebay_process import ForebayProcess, environment
from tests.support.redis_server import free_port
from tests.support.scripted_worker import MODEL, Attempt, ScriptedWorker
from tests.support.sse import Stream, data_of, open_stream


@pytest.fixture
def grace() -> str:
    """How long requests may go on after SIGTERM."""
    return "30"


@pytest.fixture
def process(redis_url: str, grace: str) -> Iterator[ForebayProcess]:
    settings = {
        "FOREBAY_REDIS_URL": redis_url,
        "FOREBAY_MODEL": MODEL,
        "FOREBAY_PORT": "0",
        "FOREBAY_HEARTBEAT_INTERVAL": "60",
        "FOREBAY_SHUTDOWN_GRACE": grace,
    }
    with ForebayProcess("api", settings=settings) as process:
        yield process


@pytest.fixture
async def client(process: ForebayProcess, worker: ScriptedWorker) -> AsyncIterator[httpx.AsyncClient]:
    url = process.wait_for("listening on ").rpartition(" ")[2]
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        yield client


async def start(worker: ScriptedWorker, stream: Stream) -> Attempt:
    """Take a job and deliver one token."""
    (attempt,) = await worker.take()
    await attempt.emit("A")
    await stream.next()
    return attempt


async def stop(process: ForebayProcess) -> None:
    """SIGTERM, and wait until it was seen."""
    process.send(signal.SIGTERM)
    await eventually(lambda: "Shutting down" in process.output, "the API is shutting down")


async def is_cancelled(worker: ScriptedWorker, job_id: str) -> bool:
    status, flag = await worker.client.hmget(worker.queue.keys.job(job_id), "status", "cancel")
    return bool(status == "cancelled" or flag)


async def test_after_sigterm_streams_go_on_to_their_end(
    client: httpx.AsyncClient, process: ForebayProcess, worker: ScriptedWorker
) -> None:
    async with open_stream(client) as stream:
        attempt = await start(worker, stream)
        await stop(process)
        await attempt.emit("B")
        await attempt.finish()
        assert await stream.text() == "AB"
    assert stream.seen[-1].event == "done"
    assert await asyncio.to_thread(process.wait) == 0
    assert "Traceback" not in process.output


@pytest.mark.parametrize("grace", ["0.2", "0"])
async def test_after_the_grace_time_clients_are_told_and_no_job_is_cancelled(
    client: httpx.AsyncClient, process: ForebayProcess, worker: ScriptedWorker
) -> None:
    async with open_stream(client) as stream:
        attempt = await start(worker, stream)
        asking = asyncio.create_task(client.post("/generate", json={"prompt": "x"}))
        (other,) = await worker.take()
        await stop(process)
        assert await stream.text() == "A"
        plain = await asking
    error = data_of(stream.seen[-1])["error"]
    assert error["code"] == "shutting_down"
    assert f"/jobs/{attempt.id}" in error["message"]
    assert (plain.status_code, plain.json()["error"]["code"]) == (503, "shutting_down")
    assert f"/jobs/{other.id}" in plain.json()["error"]["message"]
    assert await asyncio.to_thread(process.wait) == 0
    assert not await is_cancelled(worker, attempt.id)
    assert not await is_cancelled(worker, other.id)
    assert (await attempt.emit("B")).is_written
    assert "Traceback" not in process.output


async def test_hanging_up_after_sigterm_still_cancels(
    client: httpx.AsyncClient, process: ForebayProcess, worker: ScriptedWorker
) -> None:
    async with open_stream(client) as stream:
        attempt = await start(worker, stream)
        await stop(process)
    await eventually(lambda: is_cancelled(worker, attempt.id), "the job is cancelled")
    assert await asyncio.to_thread(process.wait) == 0


async def test_a_killed_api_cancels_nothing(
    client: httpx.AsyncClient, process: ForebayProcess, worker: ScriptedWorker
) -> None:
    async with open_stream(client) as stream:
        attempt = await start(worker, stream)
        process.send(signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            await stream.rest()
    assert (await attempt.emit("B")).is_written
    await attempt.finish()
    assert await worker.status(attempt.id) == "finished"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_api_ends_at_once_and_cleanly(
    client: httpx.AsyncClient, process: ForebayProcess, number: signal.Signals
) -> None:
    await client.get("/health/live")
    process.send(number)
    assert await asyncio.to_thread(process.wait) == 0
    assert "Traceback" not in process.output


def run_api(**settings: str) -> "subprocess.CompletedProcess[str]":
    """`python -m api`, which must refuse to start."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "api"],
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ["FOREBAY_REDIS_URL", "not set"]),
        ({"FOREBAY_REDIS_URL": "localhost"}, ["FOREBAY_REDIS_URL", "localhost"]),
        ({"FOREBAY_REDIS_URL": "redis://localhost:1", "FOREBAY_PORT": "port"}, ["FOREBAY_PORT", "'port'"]),
        ({"FOREBAY_REDIS_URL": "redis://localhost:1", "FOREBAY_HOST": "no.such.host.invalid"}, ["no.such.host"]),
    ],
)
def test_a_wrong_setting_is_one_line_and_an_exit_code(settings: dict[str, Any], words: list[str]) -> None:
    result = run_api(**settings)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words)


def test_a_port_in_use_is_one_line_and_an_exit_code() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        result = run_api(FOREBAY_REDIS_URL="redis://localhost:1", FOREBAY_PORT=str(port))
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert str(port) in result.stderr
