"""Redis loses data while clients read: real servers, API and worker processes. Every client gets its whole text, in
order, once; it notices no more than a pause."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shared.keys import QueueKeys
from shared.messages import TOKEN, Event, running_hash
from shared.queue import JobQueue
from shared.redis import connect
from tests.support.eventually import eventually
from tests.support.forebay_process import ForebayProcess
from tests.support.jobs import MODEL, SEED, chain_text, fake_job
from tests.support.redis_server import RedisServer
from tests.support.sse import Stream, data_of, open_stream

KEYS = QueueKeys("forebay", MODEL)
NUM_STREAMS, NUM_PLAIN = 8, 4
LENGTH = 120  # tokens of a job
AOF = ("--appendonly", "yes", "--appendfsync", "everysec")
OUTAGE = 1.5  # s
LOG_LINES = 20  # most lines that a process may write about one trouble
SETTINGS = {
    "FOREBAY_ENGINE": "fake",
    "FOREBAY_MODEL": MODEL,
    "FOREBAY_PORT": "0",
    "FOREBAY_HEARTBEAT_INTERVAL": "0.5",
    "FOREBAY_WATCHDOG_INTERVAL": "0.2",
    "FOREBAY_DRAIN_TIMEOUT": "0",
    "FOREBAY_LEASE": "2",
}


def slow(number: int, delay_ms: int = 15) -> str:
    """A prompt that makes a chain, slowly enough to break something meanwhile."""
    return json.dumps({"delay_ms": delay_ms, "number": number})


class Reader:
    """One client, reading in the background."""

    def __init__(self, http: httpx.AsyncClient, prompt: str, *, stream: bool = True, length: int = LENGTH) -> None:
        self.body = {"prompt": prompt, "max_tokens": length, "seed": SEED}
        self.expected = chain_text(prompt, length)
        self.stream: Stream | None = None
        read = self._read_stream if stream else self._read_plain
        self.task = asyncio.create_task(read(http))

    async def _read_stream(self, http: httpx.AsyncClient) -> str:
        async with open_stream(http, **self.body) as self.stream:
            text = await self.stream.text()
        events = self.stream.seen
        assert events[-1].event == "done", events[-1]
        assert [int(event.id) for event in events] == list(range(1, len(events) + 1))
        num_tokens = 0
        for event in events[:-1]:
            assert data_of(event)["index"] == num_tokens
            num_tokens += len(data_of(event)["tokens"])
        assert data_of(events[-1])["usage"]["completion_tokens"] == num_tokens
        return text

    async def _read_plain(self, http: httpx.AsyncClient) -> str:
        response = await http.post("/generate", json=self.body)
        assert response.status_code == 200, response.text
        return str(response.json()["text"])

    @property
    def num_events(self) -> int:
        return len(self.stream.seen) if self.stream else 0

    @property
    def job_id(self) -> str:
        assert self.stream is not None
        return str(data_of(self.stream.seen[0])["id"])

    async def check(self) -> None:
        """Wait for the end: the text is the full text."""
        assert await asyncio.wait_for(self.task, 60) == self.expected


class System:
    """An API process, worker processes and a client, on a Redis that the test may break."""

    def __init__(self, server: RedisServer) -> None:
        self.redis = server
        self.workers: list[ForebayProcess] = []
        self.api = ForebayProcess("api", settings=self._settings)
        self.start_worker()
        self.http = httpx.AsyncClient(base_url=self._url(), timeout=60, trust_env=False)

    @property
    def _settings(self) -> dict[str, str]:
        return SETTINGS | {"FOREBAY_REDIS_URL": self.redis.url}

    def _url(self) -> str:
        return self.api.wait_for("listening on ").rpartition(" ")[2]

    def start_worker(self) -> ForebayProcess:
        self.workers.append(ForebayProcess("worker", settings=self._settings | {"FOREBAY_MAX_NUM_SEQS": "16"}))
        return self.workers[-1]

    async def ready(self) -> None:
        async def is_ready() -> bool:
            return (await self.http.get("/health/ready")).status_code == 200

        await eventually(is_ready, "the API is ready")

    def streams(self, count: int = NUM_STREAMS) -> list[Reader]:
        return [Reader(self.http, slow(number)) for number in range(count)]

    def plain(self) -> list[Reader]:
        return [Reader(self.http, slow(100 + number), stream=False) for number in range(NUM_PLAIN)]

    def line_counts(self) -> list[int]:
        return [len(process.lines) for process in (self.api, *self.workers)]

    async def quiet_since(self, counts: list[int]) -> None:
        """Nobody hung, nobody was noisy."""
        for before, process in zip(counts, (self.api, *self.workers), strict=True):
            new = process.lines[before:]
            assert len(new) < LOG_LINES, "\n".join(new)
            assert "Traceback" not in process.output, process.output

    async def is_empty(self) -> bool:
        """No entry is left in any job stream."""
        with self.redis.client() as client:
            return not any(client.xlen(KEYS.jobs(name)) for name in ("suspect", "resume", "interactive", "batch"))


@pytest.fixture
async def system(own_redis: RedisServer) -> AsyncIterator[System]:
    """Torn down without a word of complaint from any process."""
    running = System(own_redis)
    await running.ready()
    yield running
    await running.http.aclose()
    for process in (running.api, *running.workers):
        process.send(signal.SIGCONT)
        if process.process.poll() is None:
            process.send(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 0, process.output
        with process:
            pass


async def reached(readers: list[Reader], num_events: int) -> None:
    """Wait until every reader has so many events."""
    await eventually(lambda: all(r.num_events >= num_events for r in readers), f"{num_events} events are read")


async def checked(system: System, readers: list[Reader], counts: list[int]) -> None:
    """All end well, and nothing is left."""
    for reader in readers:
        await reader.check()
    await system.quiet_since(counts)
    await eventually(system.is_empty, "all entries are removed")


async def test_a_flush_in_mid_stream_is_a_pause(system: System) -> None:
    readers, plain = system.streams(), system.plain()
    await reached(readers, 20)
    counts = system.line_counts()
    with system.redis.client() as client:
        client.flushall()
    await checked(system, readers + plain, counts)


async def test_flush_after_flush(system: System) -> None:
    readers = system.streams()
    counts = system.line_counts()
    for num_events in (1, 15, 30, 45, 60, 75, 90):
        await reached(readers, num_events)
        with system.redis.client() as client:
            client.flushall()
    await checked(system, readers, counts)


async def test_a_restart_without_data_is_a_pause(system: System) -> None:
    readers, plain = system.streams(), system.plain()
    await reached(readers, 20)
    counts = system.line_counts()
    system.redis.stop()
    system.redis.start()
    await checked(system, readers + plain, counts)
    await system.ready()


async def test_jobs_that_wait_in_the_queue_are_not_lost_either(system: System) -> None:
    system.workers[0].send(signal.SIGSTOP)
    readers, plain = system.streams(), system.plain()
    with system.redis.client() as client:
        await eventually(lambda: client.xlen(KEYS.jobs("interactive")) == NUM_STREAMS + NUM_PLAIN, "all are queued")
        client.flushall()
    system.workers[0].send(signal.SIGCONT)
    for reader in readers + plain:
        await reader.check()


async def test_prompts_of_one_request_come_back_together(system: System) -> None:
    prompts = [slow(number) for number in range(4)]
    body = {"prompts": prompts, "max_tokens": LENGTH, "seed": SEED}
    asking = asyncio.create_task(system.http.post("/generate", json=body))
    with system.redis.client() as client:
        await eventually(lambda: len(client.keys(KEYS.events("*"))) == 4, "all have made tokens")
        client.flushall()
    results = (await asking).json()["results"]
    assert [result["text"] for result in results] == [chain_text(prompt, LENGTH) for prompt in prompts]


@pytest.mark.parametrize("redis_options", [AOF])
async def test_a_lost_tail_is_a_pause(system: System, tmp_path: Path) -> None:
    """The worker lives on, its attempts still stand in Redis, but not what they have logged lately."""
    readers, plain = system.streams(), system.plain()
    await reached(readers, 20)
    system.redis.copy_data(tmp_path / "copy")
    await reached(readers, 50)
    counts = system.line_counts()
    system.redis.restart_with(tmp_path / "copy")
    await checked(system, readers + plain, counts)


@pytest.mark.parametrize("redis_options", [AOF])
async def test_a_lost_tail_that_nobody_reads_is_made_again_before_the_lease_runs_out(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    settings = SETTINGS | {"FOREBAY_REDIS_URL": own_redis.url, "FOREBAY_LEASE": "60"}
    client = connect(own_redis.url, retries=1)
    queue = JobQueue(client, KEYS)
    with ForebayProcess("worker", settings=settings) as worker:
        prompt = slow(0)
        await queue.enqueue([fake_job("a", prompt, max_tokens=LENGTH)], max_waiting=1, timeout=60, keep=60)
        await eventually(lambda: client.xlen(KEYS.events("a")), "it runs")
        own_redis.copy_data(tmp_path / "copy")
        length = await client.xlen(KEYS.events("a"))

        async def is_longer() -> bool:
            return await client.xlen(KEYS.events("a")) > length

        await eventually(is_longer, "it goes on")
        own_redis.restart_with(tmp_path / "copy")

        async def is_finished() -> bool:
            return (await queue.job("a"))["status"] == "finished"

        await eventually(is_finished, "it is finished")
        assert (await queue.job("a"))["result"] == chain_text(prompt, LENGTH)
        worker.send(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait) == 0
    await client.aclose()


async def forge(queue: JobQueue, job_id: str, num_events: int) -> int:
    """Go on with a job's log as another attempt might have: with other tokens. Returns the log's length before."""
    epoch = (await queue.job(job_id))["epoch"]
    log = await queue.read_log(job_id, 0, count=1000)
    last = log[-1]
    digest = last.hash
    for number in range(1, num_events + 1):
        previous, digest = digest, running_hash(digest, [35])
        event = Event(job_id, last.seq + number, epoch, TOKEN, (35,), "#", last.num_tokens + number, digest)
        ((verdict, _),) = await queue.emit([(event, previous)])
        assert verdict.is_written
    return last.seq


@pytest.mark.parametrize("redis_options", [AOF])
async def test_where_the_log_went_on_differently_what_the_client_has_seen_wins(system: System, tmp_path: Path) -> None:
    """Redis restarts without the tail; before the API can see it, another attempt writes another tail: in half of the
    jobs a shorter one than what was read, in half a longer one."""
    readers = system.streams()
    await reached(readers, 20)
    system.redis.copy_data(tmp_path / "copy")
    await reached(readers, 50)
    system.workers[0].send(signal.SIGKILL)
    system.api.send(signal.SIGSTOP)
    system.redis.restart_with(tmp_path / "copy")
    client = connect(system.redis.url)
    for number, reader in enumerate(readers):
        kept = await forge(JobQueue(client, KEYS), reader.job_id, 10 if number % 2 else 90)
        assert kept < 50
    await client.aclose()
    counts = system.line_counts()
    system.api.send(signal.SIGCONT)
    system.start_worker()
    await checked(system, readers, [*counts, 0])


async def test_the_same_worker_takes_a_job_again_while_its_first_row_still_runs(system: System) -> None:
    """Between two slow steps Redis loses the job, and it is there again: one id, two attempts on one worker."""
    reader = Reader(system.http, slow(0, delay_ms=400), length=8)
    await reached([reader], 2)
    with system.redis.client() as client:
        client.flushall()
        await eventually(lambda: client.hget(KEYS.job(reader.job_id), "status") == "running", "it runs again")
        await reader.check()

        async def slots_are_free() -> bool:
            (key,) = client.keys(KEYS.worker("*")) or [""]
            return bool(key) and client.hget(key, "running") == "0"

        await eventually(slots_are_free, "the worker has no rows")


# Redis that cannot serve for a while: refuses at once, loses nothing.


async def refused(system: System) -> None:
    """New requests get 503 and Retry-After, at once."""
    for path in ("/generate", "/generate_stream"):
        async with asyncio.timeout(2):
            response = await system.http.post(path, json={"prompt": "x"})
        assert (response.status_code, response.headers["retry-after"]) == (503, "5"), response.text


async def served(system: System) -> None:
    """New requests are served again."""

    async def answers() -> bool:
        response = await system.http.post("/generate", json={"prompt": "x", "max_tokens": 3, "seed": SEED})
        return response.status_code == 200 and response.json()["text"] == chain_text("x", 3)

    await eventually(answers, "requests are served")


async def through(system: System, begin: Callable[[Any], object], end: Callable[[Any], object]) -> None:
    """Streams and plain requests go through a time in which Redis refuses writes."""
    readers, plain = system.streams(), system.plain()
    await reached(readers, 20)
    counts = system.line_counts()
    with system.redis.client() as client:
        begin(client)
        until = time.monotonic() + OUTAGE
        while time.monotonic() < until:
            await refused(system)
        assert "Redis cannot take what was generated" in system.workers[0].output
        end(client)
    await checked(system, readers + plain, counts)
    await served(system)


async def test_redis_without_memory(system: System) -> None:
    await through(system, lambda c: c.config_set("maxmemory", 1), lambda c: c.config_set("maxmemory", 0))


async def test_redis_as_a_read_only_replica(system: System) -> None:
    await through(system, lambda c: c.replicaof("127.0.0.1", 1), lambda c: c.replicaof("NO", "ONE"))


async def test_redis_that_loads_its_data(system: System) -> None:
    """And that is a snapshot, without what came after it."""
    readers, plain = system.streams(), system.plain()
    await reached(readers, 20)
    with system.redis.client() as client:
        client.config_set("rdbcompression", "no")
        client.mset({f"filler:{number}": "x" * 1000 for number in range(3000)})  # each takes a millisecond to load
        client.save()
    counts = system.line_counts()
    system.redis.stop()
    system.redis.start("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024", wait=False)
    await eventually(lambda: is_loading(system.redis), "it loads")
    for _ in range(5):
        await refused(system)
    assert is_loading(system.redis)
    await checked(system, readers + plain, counts)


def is_loading(server: RedisServer) -> bool:
    """By its own word; a client of redis-py would wait for the end of it."""
    with redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as client:
        try:
            client.ping()
        except redis.exceptions.BusyLoadingError:
            return True
        except redis.ConnectionError:
            return False
        return False
