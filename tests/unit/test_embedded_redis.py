"""How the embedded Redis is started and waited for, with scripted servers instead of a real one."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli import embedded_redis
from cli.child import Child
from cli.embedded_redis import LocalRedis, log_path, prepare, probe, server_command
from cli.ports import free_port
from cli.redis_binary import RedisBinary
from shared.errors import RedisUnavailableError

BINARY = RedisBinary(Path("/bin/redis-server"), "redis", (7, 0, 15))


@contextmanager
def answering(*replies: bytes) -> Iterator[int]:
    """A server that gives one reply a connection, the last one for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        waiting = list(replies)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    if connection.recv(64):
                        connection.sendall(waiting.pop(0) if len(waiting) > 1 else waiting[0])

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def local_redis(directory: Path, port: int) -> LocalRedis:
    return LocalRedis(BINARY, directory, port, Child("redis", [], env={}, say=print))


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (b"+PONG\r\n", "PONG"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", "LOADING"),
        (b"HTTP/1.1 400 Bad Request\r\n", ""),
        (b"", ""),
    ],
)
def test_a_server_is_known_by_its_answer(reply: bytes, answer: str) -> None:
    with answering(reply) as port:
        assert probe(port) == answer


def test_nobody_there_is_no_answer() -> None:
    assert probe(free_port()) == ""


def test_the_server_is_private_durable_and_does_not_evict(tmp_path: Path) -> None:
    command = server_command(BINARY, tmp_path, 4321)
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--bind"] == "127.0.0.1"
    assert options["--port"] == "4321"
    assert (options["--appendonly"], options["--appendfsync"], options["--save"]) == ("yes", "everysec", "")
    assert options["--aof-load-truncated"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--logfile"] == str(log_path(tmp_path))


async def test_a_server_that_loads_its_data_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_redis, "PROGRESS_INTERVAL", 0.0)
    said: list[str] = []
    with answering(*[b"-LOADING\r\n"] * 3, b"+PONG\r\n") as port:
        await local_redis(tmp_path, port).wait_ready(said.append)
    assert said[:-1] == ["Redis is loading"] * 3
    assert said[-1].startswith("Redis: redis 7.0.15 (/bin/redis-server) on port")


async def test_a_server_that_never_answers_is_given_up_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_redis, "START_TIMEOUT", 0.05)
    log_path(tmp_path).write_text("one\nFatal error loading the DB\n")
    with pytest.raises(RedisUnavailableError, match=r"redis 7\.0\.15 .* did not start: one\nFatal error"):
        await local_redis(tmp_path, free_port()).wait_ready(print)


@pytest.mark.parametrize(("kind", "other"), [("redis", "valkey"), ("valkey", "redis")])
def test_data_of_the_other_kind_of_server_are_named_not_read(
    kind: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_redis, "find_redis", lambda _say: RedisBinary(Path("/bin/server"), kind, (8, 0, 0)))
    (tmp_path / other / "appendonlydir").mkdir(parents=True)
    said: list[str] = []
    local = prepare(tmp_path, 0, 0, said.append)
    assert local.directory == tmp_path / kind
    assert local.port not in (0, 6379)
    assert said == [f"jobs of earlier runs are in {tmp_path / other}: {kind} 8.0.0 (/bin/server) does not read them"]
