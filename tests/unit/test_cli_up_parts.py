"""The small parts of `forebay up`: lock, ports, readiness, requests to stop."""

import asyncio
import http.server
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli import data_lock
from cli.console import Console
from cli.data_lock import locked
from cli.ports import free_port, require_free
from cli.readiness import is_ready, reachable_url
from cli.stop_request import StopRequest
from shared.errors import ForebayError, SettingsError
from tests.support.eventually import eventually


def test_a_data_directory_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_lock, "PATIENCE", 0.0)
    with (
        locked(tmp_path),
        pytest.raises(ForebayError, match=rf"another `forebay up` \(pid {os.getpid()}\) runs on"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):  # free again
        pass


def test_a_child_that_inherits_the_lock_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_lock, "PATIENCE", 0.0)
    with locked(tmp_path) as fd:
        inherited = os.dup(fd)
    try:
        with pytest.raises(ForebayError, match="another"), locked(tmp_path):
            pass
    finally:
        os.close(inherited)


def test_a_data_directory_that_cannot_be_made_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="FOREBAY_DATA_DIR"), locked(tmp_path / "file" / "data"):
        pass


def test_a_port_in_use_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ForebayError, match=rf"127\.0\.0\.1:{port} \(FOREBAY_PORT\): Address already in use"):
            require_free("127.0.0.1", port, "FOREBAY_PORT")
    require_free("127.0.0.1", port, "FOREBAY_PORT")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "192.0.2.1"])
def test_a_host_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(ForebayError, match=f"cannot listen on {host}:0"):
        require_free(host, 0, "FOREBAY_PORT")


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:1"), ("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1")],
)
def test_a_server_is_reached_from_this_machine(host: str, url: str) -> None:
    assert reachable_url(host, 1) == url


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health/ready" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (200, b"{}", (True, "")),
        (503, b'{"error": {"message": "no worker is alive"}}', (False, "no worker is alive")),
        (503, b"busy", (False, "not ready yet")),
        (503, b"[]", (False, "not ready yet")),
    ],
)
def test_readiness_is_the_answer_of_the_api(status: int, body: bytes, answer: tuple[bool, str]) -> None:
    with answering(status, body) as url:
        assert is_ready(url) == answer


def test_an_api_that_does_not_listen_yet_is_starting() -> None:
    assert is_ready(f"http://127.0.0.1:{free_port()}") == (False, "the API is starting")


@pytest.fixture
def signals_restored() -> Iterator[None]:
    yield
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("signals_restored")
async def test_a_signal_asks_to_stop_and_only_a_second_ctrl_c_hurries(number: signal.Signals) -> None:
    request = StopRequest()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(request.stop.wait(), 10)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(request.at_once.wait(), 10)


@pytest.mark.usefixtures("signals_restored")
async def test_a_repeated_sigterm_does_not_hurry() -> None:
    request = StopRequest()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(request.stop.is_set, "it is asked to stop")
    assert not request.at_once.is_set()


@pytest.mark.usefixtures("signals_restored")
async def test_a_dead_parent_asks_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.stop_request.PARENT_INTERVAL", 0.01)
    parents = iter([100, 100, 100])
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    request = StopRequest()
    await asyncio.wait_for(request.watch_parent(), 10)
    assert request.stop.is_set()


@pytest.mark.usefixtures("signals_restored")
async def test_under_nohup_the_parent_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parents = iter([100])
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    request = StopRequest()
    await asyncio.wait_for(request.watch_parent(), 10)
    os.kill(os.getpid(), signal.SIGHUP)
    assert not request.stop.is_set()


def test_output_that_nobody_reads_is_a_reason_to_stop(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    closed: list[bool] = []
    with os.fdopen(writing, "w") as broken:
        monkeypatch.setattr("sys.stdout", broken)
        console = Console(on_closed=lambda: closed.append(True))
        console.say("one")
        console.say("two")
    assert closed == [True]
