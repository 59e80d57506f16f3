"""docs/redis.md tells the truth: each of its commands, run against a live system, prints what has the shape shown."""

import ast
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx
import pytest
import redis

from shared.messages import CANCELLED, FAILED, FINISHED, RUNNING
from tests.e2e.conftest import Stack, forebay_up
from tests.support.eventually import eventually_sync
from tests.support.forebay_process import ROOT
from tests.support.jobs import script

MODEL = "docs/model-1"  # no field is called so
BASE = f"forebay:{{{MODEL}}}:"
PAGE = (ROOT / "docs" / "redis.md").read_text("utf-8")
NAME = re.compile(r"[a-z]+([_-][a-z]+)*")  # of a field; ids, keys and values in the same places look different


@dataclass(frozen=True)
class Example:
    """A command of the page and what it shows below it."""

    arguments: str
    output: str

    @property
    def is_subscription(self) -> bool:
        return self.arguments.startswith("SUBSCRIBE")


@dataclass(frozen=True)
class Live:
    """A running system with one job under way, one that has ended and one that was given up."""

    stack: Stack
    redis_url: str
    names: dict[str, str]  # what stands for the page's placeholders

    def command(self, example: Example) -> list[str]:
        """The example as an argument list."""
        arguments = shlex.split(example.arguments)
        for name, value in self.names.items():
            arguments = [argument.replace(f"<{name}>", value) for argument in arguments]
        return [redis_cli(), "-u", self.redis_url, "--no-raw", *arguments]

    def run(self, example: Example) -> str:
        """What it prints now. A subscription prints as many lines as the page shows, with a job cancelled meanwhile."""
        if example.is_subscription:
            return self._listen(self.command(example), num_lines=len(example.output.splitlines()))
        done = subprocess.run(self.command(example), capture_output=True, text=True, timeout=30, check=True)
        return done.stdout

    def _listen(self, command: list[str], num_lines: int) -> str:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                head = [process.stdout.readline() for _ in range(4)]  # up to the confirmation
                with open_job(self.stack, script(["x" * 100], delay_ms=20)):
                    pass
                return "".join([*head, *(process.stdout.readline() for _ in range(num_lines - len(head)))])
            finally:
                process.terminate()


def redis_cli() -> str:
    path = shutil.which("redis-cli")
    assert path, "redis-cli is not on PATH; on Debian: apt-get install redis-server"
    return path


def examples() -> list[Example]:
    """Every command in a `console` block."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = [part for block in blocks for part in re.split(r"^\$ redis-cli ", block, flags=re.MULTILINE)[1:]]
    return [Example(*command.split("\n", 1)) for command in commands]


def fields_of(heading: str) -> set[str]:
    """The names in the first column of all tables of a section."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def parse(output: str) -> list[Any]:
    """What redis-cli printed as nested lists. The column of a number's bracket tells how deep it is."""
    replies: list[Any] = []
    open_lists: list[tuple[int, list[Any]]] = [(-1, replies)]
    for line in output.splitlines():
        prefixes = re.match(r"(\s*\d+\)\s+)*", line)
        assert prefixes is not None
        for number in re.finditer(r"(\d+)\)", prefixes[0]):
            is_first = number[1] == "1"
            while open_lists[-1][0] > number.end() - is_first:
                open_lists.pop()
            if is_first:
                items: list[Any] = []
                open_lists[-1][1].append(items)
                open_lists.append((number.end(), items))
        if not line.startswith("Reading messages"):
            open_lists[-1 if prefixes[0] else 0][1].append(scalar(line[prefixes.end() :]))
    return replies


def scalar(text: str) -> Any:
    if text.startswith('"'):
        return ast.literal_eval("b" + text).decode()
    if text.startswith("(integer) "):
        return int(text.removeprefix("(integer) "))
    raise AssertionError(f"not a value: {text!r}")


def shape(value: Any) -> Any:
    """Names and structure without values: field names stay, of equal items one is kept."""
    if isinstance(value, int):
        return "integer"
    if isinstance(value, str):
        return shape_of_text(value)
    if len(value) % 2 == 0 and all(isinstance(name, str) and NAME.fullmatch(name) for name in value[::2]):
        return {name: shape(item) for name, item in zip(value[::2], value[1::2], strict=True)}
    shapes: list[Any] = []
    for item in value:
        if shape(item) not in shapes:
            shapes.append(shape(item))
    return shapes


def shape_of_text(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return "text"
    return shape_of_json(value) if isinstance(value, dict) else "text"


def shape_of_json(value: Any) -> Any:
    return {name: shape_of_json(item) for name, item in value.items()} if isinstance(value, dict) else "json"


def only_shown(actual: Any, shown: Any) -> Any:
    """`actual` without the fields that other versions of Redis have in addition."""
    if isinstance(shown, dict) and isinstance(actual, dict):
        return {name: item for name, item in actual.items() if name in shown}
    if isinstance(shown, list) and isinstance(actual, list):
        return [only_shown(item, shown[0]) for item in actual]
    return actual


@contextmanager
def open_job(stack: Stack, prompt: str) -> Iterator[str]:
    """A streamed job that has made three tokens; hung up in the end. Yields its id."""
    body = {"prompt": prompt, "max_tokens": 4000}
    with (
        httpx.Client(base_url=stack.url, timeout=30, trust_env=False) as client,
        client.stream("POST", "/generate_stream", json=body) as response,
    ):
        assert response.status_code == 200
        lines = response.iter_lines()  # a name keeps it alive: once it is collected, httpx hangs up
        data = list(islice((line for line in lines if line.startswith("data:")), 3))
        yield str(json.loads(data[-1].removeprefix("data:"))["id"])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings = {"FOREBAY_ENGINE": "fake", "FOREBAY_MODEL": MODEL, "FOREBAY_LEASE": "3", "FOREBAY_MAX_ATTEMPTS": "1"}
    with forebay_up(FOREBAY_DATA_DIR=str(tmp_path_factory.mktemp("forebay")), **settings) as stack:
        found = re.search(r"-u (redis://\S+)", stack.output)
        assert found is not None
        poison, ended = (generate(stack, prompt) for prompt in (script([], exit_at=1), "hello"))
        assert poison["error"]["code"] == "poison"
        with (
            redis.Redis.from_url(found[1], decode_responses=True) as client,
            open_job(stack, script(["x" * 4000], delay_ms=50)) as job_id,
        ):
            worker = client.hget(f"{BASE}job:{job_id}", "worker") or ""
            sha256 = next(client.scan_iter("*:tokenizer:*")).rpartition(":")[2]
            names = {"queue": MODEL, "id": job_id, "ended": ended["id"], "worker": worker, "sha256": sha256}
            yield Live(stack, found[1], names)


def generate(stack: Stack, prompt: str) -> dict[str, Any]:
    """The answer of /generate, or its error."""
    body = {"prompt": prompt, "max_tokens": 8}
    answer: dict[str, Any] = httpx.post(f"{stack.url}/generate", json=body, timeout=60, trust_env=False).json()
    return answer


@pytest.fixture
def client(live: Live) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(live.redis_url, decode_responses=True) as client:
        yield client


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.arguments)
def test_a_command_of_the_page_shows_what_the_page_shows(live: Live, example: Example) -> None:
    shown, actual = shape(parse(example.output)), shape(parse(live.run(example)))
    assert shown, "the page shows no output"
    if example.arguments.startswith("XINFO"):
        actual = only_shown(actual, shown)
    assert actual == shown


def test_the_page_has_commands_for_every_kind_of_key(live: Live) -> None:
    commands = [" ".join(live.command(example)) for example in examples()]
    for kind in ("job:", "events:", "jobs:", "dead", "worker:", "models", "tokenizer:", "tokens:", "control"):
        assert any(f":{kind}" in command for command in commands), kind


def test_every_key_is_in_the_table(live: Live, client: "redis.Redis") -> None:
    patterns = [re.sub(r"<\w+>", "*", key) for key in fields_of("Keys") if key.startswith("forebay:")]
    documented = {key for pattern in patterns for key in client.scan_iter(pattern, count=1000)}
    assert set(client.scan_iter(count=1000)) == documented


def test_every_field_is_in_a_table(live: Live, client: "redis.Redis") -> None:
    names = live.names
    with open_job(live.stack, script(["x" * 100], delay_ms=20)) as cancelled:
        pass
    eventually_sync(lambda: client.hget(f"{BASE}job:{cancelled}", "status") == "cancelled", "the job is cancelled")
    with open_job(live.stack, script(["x" * 500], delay_ms=20)) as restored:
        eventually_sync(lambda: client.xlen(f"{BASE}events:{restored}") > 2, "the client has been given something")
        client.delete(f"{BASE}events:{restored}", f"{BASE}job:{restored}")  # the API brings it back
        eventually_sync(lambda: client.hget(f"{BASE}job:{restored}", "restored_seq"), "the job is restored")
    dead = [entry for _, entry in client.xrange(f"{BASE}dead")]
    ids = [names["id"], names["ended"], cancelled, dead[0]["id"]]
    jobs = [client.hgetall(f"{BASE}job:{job_id}") for job_id in ids]
    assert [job["status"] for job in jobs] == [RUNNING, FINISHED, CANCELLED, FAILED]
    assert names_in([*jobs, client.hgetall(f"{BASE}job:{restored}")]) == fields_of("A job")
    assert names_in(entry for job_id in ids for _, entry in client.xrange(f"{BASE}events:{job_id}")) == fields_of(
        "Its log"
    )
    assert names_in(entry for _, entry in client.xrange(f"{BASE}jobs:interactive")) == fields_of("The queue")
    assert names_in(dead) == fields_of("Jobs that were given up")
    card = json.loads(client.hget("forebay:models", MODEL) or "")
    assert names_in([client.hgetall(f"{BASE}worker:{names['worker']}"), card]) == fields_of("Workers and models")


def names_in(mappings: Iterable[Mapping[str, Any]]) -> set[str]:
    return {name for mapping in mappings for name in mapping}


def test_every_time_to_live_is_one(live: Live) -> None:
    shown = [example for example in examples() if example.arguments.startswith("PTTL")]
    for kind in ("job:", "events:", "worker:", "models", "tokenizer:"):
        assert any(f":{kind}" in example.arguments for example in shown), kind
    for example in shown:
        assert parse(live.run(example))[0] > 0
