"""docker-compose.yml for real: both images are built, everything comes up, generates, streams, and goes down cleanly.

Needs a Docker engine (make test-compose). All wheels are handed in, so that containers need no network.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from httpx_sse import connect_sse

from cli.ports import free_port
from shared.settings import DEFAULT_MODEL
from tests.support.eventually import eventually_sync
from worker.models import resolve_model

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
CONTEXT = [
    *("Dockerfile", ".dockerignore", "docker-compose.yml", "LICENSE", "README.md"),
    *("constraints.txt", "pyproject.toml", "deploy", "api", "cli", "shared", "worker"),
]
PROMPT = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}


def run(*command: str | Path, **options: object) -> str:
    """The output of a command; fails with all that it said."""
    done = subprocess.run([*command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return str(done.stdout)


@dataclass
class Stack:
    """A project of docker-compose in its own directory."""

    directory: Path
    project: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def compose(self, *arguments: str) -> str:
        tool = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
        env = os.environ | {"API_PORT": str(self.port), "PIP_NO_INDEX": "1", "FOREBAY_NUM_THREADS": "2"}
        return run(*tool, "--project-name", self.project, *arguments, cwd=self.directory, env=env)

    def container(self, service: str) -> str:
        return self.compose("ps", "--quiet", service).strip()

    def inspect(self, container: str, template: str) -> str:
        return run("docker", "inspect", "--format", template, container).strip()

    def health(self, service: str) -> str:
        return self.inspect(self.container(service), "{{.State.Health.Status}}")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Built and running, with the default model in its volume."""
    run("docker", "version")
    directory = tmp_path_factory.mktemp("compose")
    copy_context(directory)
    collect_wheels(directory)
    stack = Stack(directory, f"forebay-test-{secrets.token_hex(3)}", free_port())
    try:
        stack.compose("build")
        stack.compose("up", "--no-start")
        seed_model(stack, tmp_path_factory.mktemp("data"))
        stack.compose("up", "--detach")
        eventually_sync(lambda: is_ready(stack), "the API is ready", deadline=180)
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "20")


def copy_context(directory: Path) -> None:
    for name in CONTEXT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, directory / name)


def collect_wheels(directory: Path) -> None:
    """Everything that the images install, for their Python, taken with this machine's pip settings."""
    script = ROOT / "deploy" / "requirements.py"
    wanted = run(sys.executable, script, ROOT / "pyproject.toml", "api", "worker").split("\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version=3.11"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(directory / ".wheels")]
    run(*command, "hatchling", *filter(None, wanted))


def seed_model(stack: Stack, data_dir: Path) -> None:
    """Put the model where the worker's volume has it: a container here may not reach a hub or an index."""
    resolve_model(DEFAULT_MODEL, data_dir, print)
    worker = stack.container("worker")
    run("docker", "cp", data_dir / "models", f"{worker}:/data/")


def is_ready(stack: Stack) -> bool:
    try:
        with urllib.request.urlopen(f"{stack.url}/health/ready", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def test_a_prompt_is_answered(stack: Stack) -> None:
    answer = httpx.post(f"{stack.url}/generate", json=PROMPT, timeout=60).json()
    assert "Paris" in answer["text"]
    assert answer["usage"]["completion_tokens"] == 8


def test_a_stream_carries_the_same_text(stack: Stack) -> None:
    whole = httpx.post(f"{stack.url}/generate", json=PROMPT, timeout=60).json()["text"]
    with (
        httpx.Client(timeout=60) as client,
        connect_sse(client, "POST", f"{stack.url}/generate_stream", json=PROMPT) as source,
    ):
        events = list(source.iter_sse())
    assert "".join(json.loads(event.data)["text"] for event in events if event.event == "token") == whole
    assert events[-1].event == "done"


@pytest.mark.parametrize("service", ["redis", "api", "worker"])
def test_every_container_is_found_healthy(stack: Stack, service: str) -> None:
    eventually_sync(lambda: stack.health(service) == "healthy", f"{service} is healthy", deadline=60)


@pytest.mark.parametrize("service", ["api", "worker"])
def test_nothing_runs_as_root(stack: Stack, service: str) -> None:
    assert run("docker", "exec", stack.container(service), "id", "-u").strip() == "10001"


def test_the_api_image_has_no_torch_and_the_worker_image_no_fastapi(stack: Stack) -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'transformers', 'fastapi') if u.find_spec(n)])"
    assert run("docker", "exec", stack.container("api"), "python", "-c", code).strip() == "['fastapi']"
    assert run("docker", "exec", stack.container("worker"), "python", "-c", code).strip() == "['torch', 'transformers']"


def test_redis_keeps_its_log_and_evicts_nothing(stack: Stack) -> None:
    redis = stack.container("redis")
    for name, value in {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}.items():
        assert run("docker", "exec", redis, "redis-cli", "config", "get", name).split() == [name, value]


def test_a_finished_job_survives_a_restart_of_redis(stack: Stack) -> None:
    job = httpx.post(f"{stack.url}/generate", json=PROMPT, timeout=60).json()["id"]
    stack.compose("restart", "redis")
    eventually_sync(lambda: is_ready(stack), "the API is ready again", deadline=60)
    assert httpx.get(f"{stack.url}/jobs/{job}", timeout=20).json()["id"] == job


def test_sigterm_ends_every_container_cleanly(stack: Stack) -> None:
    containers = {service: stack.container(service) for service in ("api", "worker", "redis")}
    stack.compose("stop")
    codes = {service: stack.inspect(container, "{{.State.ExitCode}}") for service, container in containers.items()}
    assert codes == {"api": "0", "worker": "0", "redis": "0"}
