"""`forebay settings`, and the refusal of settings that nobody reads. No Redis, no torch."""

import json
import sys
from pathlib import Path

import pytest

from cli.common import needs_extra
from cli.known_settings import known_names, read_all, refuse_unknown
from cli.redis_url import mask_password
from shared.errors import ForebayError, SettingsError
from tests.support.forebay_process import run_forebay


def source_of(name: str) -> tuple[str, object]:
    setting = next(setting for setting in read_all() if setting.name == name)
    return setting.source, setting.value


def test_every_setting_is_listed_once_with_a_description() -> None:
    settings = list(read_all())
    assert {setting.name for setting in settings} | {"REDIS_URL"} == known_names()
    assert len({setting.name for setting in settings}) == len(settings)
    assert all(setting.description and setting.source == "default" for setting in settings)


def test_a_value_shows_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("FOREBAY_PORT=8001\nFOREBAY_HOST=0.0.0.0\nforebay_max_num_seqs=7\n")
    monkeypatch.setenv("FOREBAY_PORT", "8002")
    assert source_of("FOREBAY_PORT") == ("environment", 8002)
    assert source_of("FOREBAY_HOST") == (".env", "0.0.0.0")
    assert source_of("FOREBAY_MAX_NUM_SEQS") == (".env", 7)
    assert source_of("FOREBAY_LOG_LEVEL") == ("default", "info")


def test_the_plain_redis_url_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://plain")
    assert source_of("FOREBAY_REDIS_URL") == ("environment", "redis://plain")
    monkeypatch.setenv("FOREBAY_REDIS_URL", "redis://ours")
    assert source_of("FOREBAY_REDIS_URL") == ("environment", "redis://ours")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:pw@h/0", "redis://:***@h/0"),
        ("rediss://me:p@ss:word@h:1", "rediss://me:***@h:1"),
        ("redis://h/0?db=1&password=pw&x=1", "redis://h/0?db=1&password=***&x=1"),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert mask_password(url) == shown


@pytest.mark.parametrize("arguments", [["settings"], ["settings", "--json"]])
def test_the_command_never_prints_a_password(arguments: list[str]) -> None:
    done = run_forebay(*arguments, REDIS_URL="redis://me:hidden@h/0")
    assert done.returncode == 0
    assert "redis://me:***@h/0" in done.stdout
    assert "hidden" not in done.stdout + done.stderr


def test_json_output_keeps_numbers_and_names_the_variable() -> None:
    done = run_forebay("settings", "--json", REDIS_URL="redis://h")
    found = {setting["name"]: setting for setting in json.loads(done.stdout)}
    assert found["FOREBAY_PORT"]["value"] == 8000
    assert found["FOREBAY_REDIS_URL"]["variable"] == "REDIS_URL"
    assert found["FOREBAY_MAX_MODEL_LEN"]["value"] is None


def test_an_unknown_name_is_refused_with_the_closest_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_PROT", "1")
    with pytest.raises(SettingsError, match="FOREBAY_PROT in the environment; did you mean FOREBAY_PORT"):
        refuse_unknown()


def test_an_unknown_name_in_the_env_file_is_refused() -> None:
    Path(".env").write_text("OTHER=1\nFOREBAY_MODLE=x\n")
    with pytest.raises(SettingsError, match=r"FOREBAY_MODLE in \.env; did you mean FOREBAY_MODEL"):
        refuse_unknown()


def test_an_env_file_that_is_no_text_is_refused() -> None:
    Path(".env").write_bytes(b"FOREBAY_MODEL=\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read"):
        refuse_unknown()


@pytest.mark.parametrize("command", ["up", "api", "worker", "settings"])
def test_every_command_refuses_an_unknown_setting_in_one_line(command: str) -> None:
    done = run_forebay(command, FOREBAY_UP_WORKER="2")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "forebay: unknown setting FOREBAY_UP_WORKER in the environment; did you mean FOREBAY_UP_WORKERS?\n"
    )


@pytest.mark.parametrize("command", ["up", "api", "settings"])
def test_a_wrong_value_is_said_in_one_line(command: str) -> None:
    done = run_forebay(command, FOREBAY_PORT="http")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("forebay: FOREBAY_PORT='http': ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["api", "worker"])
def test_a_process_without_redis_says_what_to_set(command: str) -> None:
    done = run_forebay(command)
    assert done.returncode == 2
    assert "FOREBAY_REDIS_URL is not set" in done.stderr
    assert "forebay up" in done.stderr


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with (
        pytest.raises(ForebayError, match=r"uvicorn is not installed here: pip install 'forebay\[api\]'"),
        needs_extra("api"),
    ):
        import uvicorn  # noqa: F401
