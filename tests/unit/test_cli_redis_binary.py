"""Which server program is taken. The programs are small scripts that only know --version."""

from pathlib import Path

import pytest

from cli import redis_binary
from cli.redis_binary import find_redis, inspect_binary, packaged_binary
from cli.redis_url import check_url, parse_version
from shared.errors import RedisUnavailableError, SettingsError

REDIS_7 = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0"
REDIS_6 = "Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64 build=0"
VALKEY = "Valkey server v=8.1.1 sha=00000000:0 malloc=libc bits=64 build=0"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH, and no package."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_binary, "packaged_binary", lambda: None)
    return tmp_path


def make(directory: Path, name: str, version: str) -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


def test_redis_on_path_is_taken_before_valkey(programs: Path) -> None:
    make(programs, "valkey-server", VALKEY)
    path = make(programs, "redis-server", REDIS_7)
    found = find_redis(pytest.fail)
    assert (found.path, found.kind, found.version) == (path, "redis", (7, 0, 15))


def test_an_old_server_is_passed_over_with_a_line(programs: Path) -> None:
    old = make(programs, "redis-server", REDIS_6)
    make(programs, "valkey-server", VALKEY)
    said: list[str] = []
    assert find_redis(said.append).kind == "valkey"
    assert said == [f"{old} is passed over: it is not version 7.0 or newer"]


@pytest.mark.parametrize("text", ["not a version", "exit 3"])
def test_a_program_that_is_something_else_is_passed_over(programs: Path, text: str) -> None:
    make(programs, "redis-server", text)
    with pytest.raises(RedisUnavailableError, match="no Redis found: set FOREBAY_REDIS_URL"):
        find_redis(lambda _: None)


def test_a_program_that_cannot_be_started_is_passed_over(programs: Path) -> None:
    path = programs / "redis-server"
    path.write_bytes(b"\x7fELF broken")
    path.chmod(0o755)
    assert inspect_binary(path).version == ()


def test_the_package_brings_a_server_for_this_machine() -> None:
    path = packaged_binary()
    assert path is not None
    found = inspect_binary(path)
    assert found.kind == "valkey"
    assert found.version >= (7, 0)


@pytest.mark.parametrize(("text", "version"), [(VALKEY, (8, 1, 1)), ("7.4.0", (7, 4, 0)), ("none", ())])
def test_versions_are_read_from_text(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "redis://localhost:port/0", ""])
def test_a_malformed_url_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(SettingsError, match="FOREBAY_REDIS_URL"):
        check_url(url)


def test_a_server_that_is_away_is_named_without_the_password() -> None:
    with pytest.raises(RedisUnavailableError, match=r"Redis at redis://me:\*\*\*@127\.0\.0\.1:1/0 cannot be used"):
        check_url("redis://me:secret@127.0.0.1:1/0")
