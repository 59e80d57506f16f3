"""The files that set a machine up agree with each other: pins, settings in docker-compose.yml, the Makefile."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from api.settings import ApiSettings
from cli.known_settings import names_of
from shared.settings import CommonSettings
from tests.support.forebay_process import ROOT
from worker.settings import WorkerSettings

FIXED_IN_IMAGES = {"FOREBAY_HOST", "FOREBAY_PORT", "FOREBAY_DATA_DIR"}


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(line.partition("==")[0]): line for line in lines}


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = [item for extra in project["project"]["optional-dependencies"].values() for item in extra]
    texts = [*project["project"]["dependencies"], *optional, *project["dependency-groups"]["dev"]]
    return [requirement for text in texts if (requirement := Requirement(text)).name != "forebay"]


def test_constraints_are_plain_pins() -> None:
    for line in pins().values():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line), line


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_dependency_is_pinned_to_a_version_it_allows(requirement: Requirement) -> None:
    pin = pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin.partition("==")[2])


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return services


@pytest.mark.parametrize(
    ("service", "kind"), [("api", ApiSettings), ("worker", WorkerSettings), ("worker-gpu", WorkerSettings)]
)
def test_compose_hands_every_setting_on(compose: dict[str, Any], service: str, kind: type[CommonSettings]) -> None:
    names = {names_of(field, info)[0] for field, info in kind.model_fields.items()}
    handed_on = {name for name in compose[service]["environment"] if name.startswith("FOREBAY_")}
    assert handed_on == names - FIXED_IN_IMAGES


def test_compose_gives_processes_time_to_drain(compose: dict[str, Any]) -> None:
    for service, drain in [("api", ApiSettings().shutdown_grace), ("worker", WorkerSettings().drain_timeout)]:
        assert float(compose[service]["stop_grace_period"].removesuffix("s")) > 2 * drain


def make(*arguments: str, path: str) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": path, "HOME": os.environ["HOME"]}
    command = ["make", "--no-print-directory", "-C", str(ROOT), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def fake_python(directory: Path, body: str) -> str:
    path = directory / "python3"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_make_without_a_target_lists_the_targets() -> None:
    listed = set(re.findall(r"^make ([a-z-]+)", make(path=os.environ["PATH"]).stdout, re.MULTILINE))
    assert {"up", "test", "check", "test-compose", "bench", "clean"} <= listed


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("exit 1", "no Python 3.11 or newer found"),
        ('case "$2" in *version_info*) exit 0;; *) exit 1;; esac', "apt-get install python3-venv"),
    ],
    ids=["too old", "without venv"],
)
def test_make_says_what_python_lacks(tmp_path: Path, body: str, message: str) -> None:
    fake_python(tmp_path, body)
    for name in ("python3.11", "python3.12", "python3.13", "python3.14"):
        (tmp_path / name).symlink_to(tmp_path / "python3")
    done = make("setup", f"VENV={tmp_path}/venv", path=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode != 0
    assert message in done.stderr.splitlines()[0]
    assert not (tmp_path / "venv").exists()
