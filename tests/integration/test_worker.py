"""Real worker processes with the fake engine, driven through the queue."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from shared.keys import QueueKeys, models_key
from shared.messages import CANCELLED, EXPIRED, FAILED, FINISHED, Event, ModelCard
from shared.queue import JobQueue
from shared.redis import connect
from tests.support.eventually import eventually
from tests.support.forebay_process import ForebayProcess
from tests.support.jobs import MODEL, chain_text, fake_job, script
from tests.support.redis_server import RedisServer
from tests.support.slow_proxy import slow_proxy

KEYS = QueueKeys("forebay", MODEL)
StartWorker = Callable[..., ForebayProcess]
StartRedis = Callable[..., RedisServer]
QueueOn = Callable[[RedisServer], JobQueue]


@pytest.fixture
def start_worker(redis_url: str) -> Iterator[StartWorker]:
    """Starts workers; the test fails if one that still runs does not end cleanly."""
    workers: list[ForebayProcess] = []

    def start(url: str = redis_url, **settings: str) -> ForebayProcess:
        defaults = {"FOREBAY_REDIS_URL": url, "FOREBAY_ENGINE": "fake", "FOREBAY_MODEL": MODEL}
        workers.append(ForebayProcess("worker", settings=defaults | {"FOREBAY_DRAIN_TIMEOUT": "0"} | settings))
        return workers[-1]

    yield start
    for worker in workers:
        with worker:
            worker.send(signal.SIGCONT)
            if worker.process.poll() is None:
                worker.send(signal.SIGTERM)
                assert worker.wait() == 0, worker.output


@pytest.fixture
def queue(redis_client: Redis) -> JobQueue:
    return JobQueue(redis_client, KEYS)


@pytest.fixture
async def queue_on() -> AsyncIterator[QueueOn]:
    """Queues on servers that the test starts."""
    clients: list[Redis] = []

    def make(server: RedisServer) -> JobQueue:
        clients.append(connect(server.url, retries=3))
        return JobQueue(clients[-1], KEYS)

    yield make
    for client in clients:
        await client.aclose()


async def enqueue(queue: JobQueue, *jobs: object, timeout: float = 60) -> None:
    await queue.enqueue(jobs, max_waiting=10_000, timeout=timeout, keep=60)


async def ended(queue: JobQueue, job_id: str) -> list[Event]:
    """The whole log of a job, once it has ended."""

    async def log() -> list[Event] | None:
        events = await queue.read_log(job_id, 0, count=10_000)
        return events if events and events[-1].is_terminal else None

    return await eventually(log, f"job {job_id} ends")


async def text_of(queue: JobQueue, job_id: str) -> str:
    events = await ended(queue, job_id)
    assert events[-1].type == FINISHED, events[-1]
    return "".join(event.text for event in events)


async def running(queue: JobQueue, job_id: str) -> None:
    await eventually(lambda: queue.read_log(job_id, 0), f"job {job_id} makes tokens")


async def facts(queue: JobQueue) -> list[dict[str, str]]:
    keys = [key async for key in queue.client.scan_iter(KEYS.worker("*"))]
    return [await queue.client.hgetall(key) for key in keys]


async def test_many_jobs_get_their_own_tokens(queue: JobQueue, start_worker: StartWorker) -> None:
    start_worker()
    jobs = [fake_job(f"j{number}", f"prompt {number}", stream=number % 2 == 0) for number in range(200)]
    await enqueue(queue, *jobs)
    for number in range(200):
        assert await text_of(queue, f"j{number}") == chain_text(f"prompt {number}", 64)
    assert await queue.client.xlen(KEYS.jobs("interactive")) == 0


async def test_a_job_queued_before_the_first_worker_is_served(queue: JobQueue, start_worker: StartWorker) -> None:
    await enqueue(queue, fake_job("a"))
    start_worker()
    assert await text_of(queue, "a") == chain_text("hello", 64)


async def test_a_worker_says_what_it_serves(queue: JobQueue, start_worker: StartWorker) -> None:
    worker = start_worker(FOREBAY_MAX_NUM_SEQS="3", FOREBAY_MAX_MODEL_LEN="100")
    text = await eventually(lambda: queue.client.hget(models_key("forebay"), MODEL), "the model is shown")
    card = ModelCard.from_json(text)
    assert (card.queue, card.engine, card.max_model_len) == (MODEL, "fake", 100)
    assert json.loads(await queue.client.get(f"forebay:tokenizer:{card.tokenizer}"))["model"]["type"] == "BPE"
    (state,) = await facts(queue)
    assert (state["status"], state["slots"], state["running"]) == ("ready", "3", "0")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert await facts(queue) == []
    assert ModelCard.from_json(await queue.client.hget(models_key("forebay"), MODEL)).updated_at == 0


async def test_a_cancelled_job_leaves_its_slot(queue: JobQueue, start_worker: StartWorker) -> None:
    start_worker(FOREBAY_MAX_NUM_SEQS="1")
    await enqueue(queue, fake_job("long", script(["x" * 5000], delay_ms=5), max_tokens=5000))
    await running(queue, "long")
    await enqueue(queue, fake_job("next"))
    await queue.cancel("long")
    log = await ended(queue, "long")
    assert log[-1].type == CANCELLED
    assert log[-1].num_tokens < 5000
    assert await text_of(queue, "next") == chain_text("hello", 64)


async def test_jobs_cancelled_while_they_wait_are_never_run(queue: JobQueue, start_worker: StartWorker) -> None:
    start_worker(FOREBAY_MAX_NUM_SEQS="1")
    await enqueue(queue, fake_job("long", script(["x" * 100], delay_ms=5), max_tokens=100))
    await running(queue, "long")
    await enqueue(queue, *(fake_job(f"w{number}", script([], exit_at=1)) for number in range(5)))
    for number in range(5):
        assert await queue.cancel(f"w{number}") == CANCELLED
    await enqueue(queue, fake_job("next"))
    assert await text_of(queue, "next") == chain_text("hello", 64)
    assert await text_of(queue, "long") == "x" * 100


async def test_a_running_job_expires(queue: JobQueue, start_worker: StartWorker) -> None:
    start_worker()
    await enqueue(queue, fake_job("a", script(["x" * 5000], delay_ms=10), max_tokens=5000), timeout=0.3)
    log = await ended(queue, "a")
    assert log[-1].type == EXPIRED
    assert await queue.client.xlen(KEYS.jobs("interactive")) == 0


async def test_a_failing_job_ends_as_failed(queue: JobQueue, start_worker: StartWorker) -> None:
    start_worker()
    await enqueue(queue, fake_job("bad", script(["abc"], fail_at=3)), fake_job("good"))
    log = await ended(queue, "bad")
    assert log[-1].type == FAILED
    assert log[-1].data["error"]["code"] == "engine_error"
    assert "".join(event.text for event in log) == "ab"
    assert await text_of(queue, "good") == chain_text("hello", 64)


async def test_a_stopped_worker_hands_back_and_another_goes_on(queue: JobQueue, start_worker: StartWorker) -> None:
    first = start_worker()
    await enqueue(queue, fake_job("a", script(["0123456789" * 10], delay_ms=10), max_tokens=500))
    await running(queue, "a")
    first.send(signal.SIGTERM)
    assert first.wait() == 0, first.output
    start_worker()
    assert await text_of(queue, "a") == "0123456789" * 10
    assert len({event.epoch for event in await queue.read_log("a", 0, count=1000)}) > 1


async def test_a_draining_worker_finishes_what_is_short(queue: JobQueue, start_worker: StartWorker) -> None:
    worker = start_worker(FOREBAY_DRAIN_TIMEOUT="20")
    await enqueue(queue, fake_job("a", script(["abcdefghij"], delay_ms=20)))
    await running(queue, "a")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert await text_of(queue, "a") == "abcdefghij"


async def test_a_worker_survives_flushes_and_lost_connections(queue: JobQueue, start_worker: StartWorker) -> None:
    worker = start_worker(FOREBAY_HEARTBEAT_INTERVAL="0.1")
    await enqueue(queue, fake_job("a"))
    await ended(queue, "a")
    for number, command in enumerate(
        ["FLUSHALL", "SCRIPT FLUSH", "CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub"]
    ):
        await queue.client.execute_command(*command.split())
        await enqueue(queue, fake_job(f"b{number}", f"after {command}"))
        assert await text_of(queue, f"b{number}") == chain_text(f"after {command}", 64)
    await eventually(lambda: queue.client.hget(models_key("forebay"), MODEL), "the model is shown again")
    assert len(worker.lines) < 30, worker.output


async def test_an_idle_worker_is_quiet(queue: JobQueue, start_worker: StartWorker) -> None:
    """Longer than the time-outs of sockets and pings."""
    worker = start_worker()
    await enqueue(queue, fake_job("a"))
    await ended(queue, "a")
    before = len(worker.lines)
    commands = (await queue.client.info("stats"))["total_connections_received"]
    beats = int((await facts(queue))[0]["heartbeat_at"])
    await eventually(lambda: _has_beaten(queue, beats + 13_000), "the worker beats on", deadline=40)
    assert len(worker.lines) == before, worker.output
    assert (await queue.client.info("stats"))["total_connections_received"] == commands


async def _has_beaten(queue: JobQueue, since: int) -> bool:
    return int((await facts(queue))[0]["heartbeat_at"]) > since


async def test_redis_hangs_and_comes_back(
    start_redis: StartRedis, queue_on: QueueOn, start_worker: StartWorker
) -> None:
    server = start_redis()
    worker = start_worker(server.url, FOREBAY_HEARTBEAT_INTERVAL="0.2")
    queue = queue_on(server)
    await enqueue(queue, fake_job("a", script(["0123456789" * 20], delay_ms=10), max_tokens=500))
    await running(queue, "a")
    with server.paused():
        await eventually(lambda: "trying again" in worker.output, "the worker notices")
    assert await text_of(queue, "a") == "0123456789" * 20
    assert len(worker.lines) < 20, worker.output


async def test_a_worker_without_redis_can_be_stopped(
    start_redis: StartRedis, queue_on: QueueOn, start_worker: StartWorker
) -> None:
    server = start_redis()
    worker = start_worker(server.url)
    worker.wait_for("ready")
    server.stop()
    worker.wait_for("trying again")
    worker.send(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait) == 0


async def test_redis_restarts_with_its_data(
    start_redis: StartRedis, queue_on: QueueOn, start_worker: StartWorker, tmp_path: Path
) -> None:
    server = start_redis("--appendonly", "yes", "--appendfsync", "always")
    start_worker(server.url)
    queue = queue_on(server)
    await enqueue(queue, fake_job("a", script(["0123456789" * 20], delay_ms=10), max_tokens=500))
    await running(queue, "a")
    server.stop()
    server.start()
    assert await text_of(queue, "a") == "0123456789" * 20


SHORT_LEASE = {"FOREBAY_LEASE": "0.5", "FOREBAY_HEARTBEAT_INTERVAL": "0.2"}


async def test_a_killed_worker_is_replaced_in_mid_stream(queue: JobQueue, start_worker: StartWorker) -> None:
    first = start_worker(**SHORT_LEASE)
    await enqueue(
        queue, *(fake_job(f"j{n}", script(["0123456789" * 8], delay_ms=10), max_tokens=500) for n in range(6))
    )
    await running(queue, "j5")
    first.process.kill()
    start_worker(**SHORT_LEASE)
    for number in range(6):
        assert await text_of(queue, f"j{number}") == "0123456789" * 8
        attempts = {event.epoch for event in await queue.read_log(f"j{number}", 0, count=1000)}
        assert len(attempts) == 2
    assert await queue.client.xlen(KEYS.jobs("suspect")) == 0


async def test_a_paused_worker_loses_its_job_and_stays_silent(queue: JobQueue, start_worker: StartWorker) -> None:
    first = start_worker(**SHORT_LEASE)
    await enqueue(queue, fake_job("a", script(["0123456789" * 8], delay_ms=20), max_tokens=500))
    await running(queue, "a")
    first.send(signal.SIGSTOP)
    start_worker(**SHORT_LEASE)
    await eventually(lambda: _num_epochs(queue, "a", 2), "the second worker goes on")
    first.send(signal.SIGCONT)
    assert await text_of(queue, "a") == "0123456789" * 8
    first.wait_for("dropped")
    await enqueue(queue, fake_job("b"))
    assert await text_of(queue, "b") == chain_text("hello", 64)


async def _num_epochs(queue: JobQueue, job_id: str, count: int) -> bool:
    return len({event.epoch for event in await queue.read_log(job_id, 0, count=1000)}) >= count


async def test_a_live_job_longer_than_the_lease_is_entered_once(queue: JobQueue, start_worker: StartWorker) -> None:
    for _ in range(2):
        start_worker(**SHORT_LEASE)
    await enqueue(queue, fake_job("a", script(["x" * 60], delay_ms=100)))
    assert await text_of(queue, "a") == "x" * 60
    job = await queue.job("a")
    assert (job["attempts"], "lost_by" in job) == ("1", False)


async def test_a_poison_job_is_given_up_and_takes_nobody_with_it(queue: JobQueue, start_worker: StartWorker) -> None:
    workers = [start_worker(**SHORT_LEASE)]
    good = [fake_job(f"g{n}", script(["0123456789" * 4], delay_ms=20), max_tokens=500) for n in range(4)]
    await enqueue(queue, *good[:2], fake_job("poison", script(["ab"], exit_at=1)), *good[2:])

    async def supervised() -> bool:
        if workers[-1].process.poll() is not None:
            workers.append(start_worker(**SHORT_LEASE))
        log = await queue.read_log("poison", 0)
        return bool(log)

    await eventually(supervised, "the poison job is given up", deadline=60)
    (end,) = await queue.read_log("poison", 0)
    assert end.data["error"]["code"] == "poison"
    for number in range(4):
        assert await text_of(queue, f"g{number}") == "0123456789" * 4
    assert len(workers) == 4
    assert await queue.client.xlen(KEYS.dead) == 1


async def test_a_stall_of_redis_steals_nothing(
    start_redis: StartRedis, queue_on: QueueOn, start_worker: StartWorker
) -> None:
    server = start_redis("--enable-debug-command", "local")
    workers = [start_worker(server.url, **SHORT_LEASE | {"FOREBAY_LEASE": "1"}) for _ in range(2)]
    queue = queue_on(server)
    jobs = [fake_job(f"j{n}", script(["x" * 200], delay_ms=20), max_tokens=500) for n in range(8)]
    await enqueue(queue, *jobs)
    await running(queue, "j7")
    for _ in range(3):
        await queue.client.execute_command("DEBUG", "SLEEP", "2.4")  # more than two leases
    for number in range(8):
        assert await text_of(queue, f"j{number}") == "x" * 200
        assert (await queue.job(f"j{number}"))["attempts"] == "1"
    assert not any("queued again" in worker.output for worker in workers)


DIGITS = "0123456789" * 30


async def test_a_hand_back_behind_a_slow_redis_skips_nothing(
    queue: JobQueue, redis_server: RedisServer, start_worker: StartWorker
) -> None:
    ids = [f"j{number}" for number in range(8)]
    async with slow_proxy(redis_server.port, delay=0.03) as port:
        worker = start_worker(f"redis://127.0.0.1:{port}/0")
        await enqueue(queue, *(fake_job(job_id, script([DIGITS], delay_ms=4), max_tokens=500) for job_id in ids))
        for job_id in ids:
            await eventually(lambda job_id=job_id: queue.read_log(job_id, 3), f"job {job_id} has several events")
        worker.send(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait) == 0
    assert {(await queue.job(job_id))["status"] for job_id in ids} == {"queued"}, worker.output
    start_worker()
    for job_id in ids:
        assert await text_of(queue, job_id) == DIGITS


async def test_a_hand_back_while_redis_refuses_writes_skips_nothing(
    start_redis: StartRedis, queue_on: QueueOn, start_worker: StartWorker
) -> None:
    server = start_redis()
    queue = queue_on(server)
    worker = start_worker(server.url)
    await enqueue(queue, fake_job("a", script([DIGITS], delay_ms=10), max_tokens=500))
    await running(queue, "a")
    await queue.client.config_set("maxmemory", 1)
    await eventually(lambda: "trying again" in worker.output, "the worker cannot write")
    worker.send(signal.SIGTERM)
    await eventually(lambda: "draining" in worker.output, "the worker drains")
    await queue.client.config_set("maxmemory", 0)
    assert await asyncio.to_thread(worker.wait) == 0
    start_worker(server.url)
    assert await text_of(queue, "a") == DIGITS


async def test_jobs_taken_at_the_moment_of_a_stop_are_handed_back(
    queue: JobQueue, redis_server: RedisServer, start_worker: StartWorker
) -> None:
    async with slow_proxy(redis_server.port, delay=0.1) as port:
        worker = start_worker(f"redis://127.0.0.1:{port}/0")
        await asyncio.to_thread(worker.wait_for, "ready")
        await enqueue(queue, fake_job("a", script([DIGITS], delay_ms=4), max_tokens=500))
        await eventually(lambda: _is_running(queue, "a"), "the job is taken")
        worker.send(signal.SIGTERM)  # the reply to the take is still on its way
        assert await asyncio.to_thread(worker.wait) == 0
    assert (await queue.job("a"))["status"] == "queued"


async def _is_running(queue: JobQueue, job_id: str) -> bool:
    return (await queue.job(job_id))["status"] == "running"


async def test_a_request_that_cannot_be_read_fails_alone(queue: JobQueue, start_worker: StartWorker) -> None:
    await enqueue(queue, fake_job("odd"), fake_job("good"))
    await queue.client.hset(KEYS.job("odd"), "request", '{"id": "odd", "from_a_newer_version": 1}')
    start_worker()
    assert await text_of(queue, "good") == chain_text("hello", 64)
    log = await ended(queue, "odd")
    assert (log[-1].type, log[-1].data["error"]["code"]) == (FAILED, "unreadable_request")


async def test_a_worker_that_left_is_in_no_group(queue: JobQueue, start_worker: StartWorker) -> None:
    worker = start_worker()
    await enqueue(queue, fake_job("a"))
    await ended(queue, "a")
    stream = KEYS.jobs("interactive")
    assert len(await queue.client.xinfo_consumers(stream, "workers")) == 1
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert await queue.client.xinfo_consumers(stream, "workers") == []


async def test_thousands_of_jobs_leave_no_entries(queue: JobQueue, start_worker: StartWorker) -> None:
    start_worker()
    for start in range(0, 5000, 500):
        jobs = [fake_job(f"j{start + number}", max_tokens=1, stream=False) for number in range(500)]
        await enqueue(queue, *jobs)
    assert await text_of(queue, "j4999") == chain_text("hello", 1)
    await eventually(lambda: _has_no_entries(queue), "all entries are gone")
    assert (await queue.client.xpending(KEYS.jobs("interactive"), "workers"))["pending"] == 0


async def _has_no_entries(queue: JobQueue) -> bool:
    return int(await queue.client.xlen(KEYS.jobs("interactive"))) == 0
