"""One run: start everything, load it and break it, let it heal, and collect what is left."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from shared.keys import GROUP, JOB_CLASSES
from shared.messages import QUEUED, RUNNING
from tests.chaos.clients import Client
from tests.chaos.faults import KEYS, Faults
from tests.chaos.history import History, JobState, Remains
from tests.chaos.plan import LOSSY, faults, number_of, requests
from tests.chaos.processes import Cluster
from tests.support.eventually import eventually
from tests.support.redis_server import keys_without_ttl

MAX_OPEN = 120  # requests at once
MAX_DELAY = 3  # a run may take so many times as long as planned before it stops to send requests


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is like. `every`: s between faults, on average."""

    num_requests: int
    minutes: float
    seed: int
    kinds: Sequence[str]
    every: float = 0.4
    heal_timeout: float = 60.0  # s after the last fault in which everything must have ended
    redis_kind: str = "redis"
    source: Path | None = None  # another copy of Forebay to run


async def run_chaos(options: Options, directory: Path) -> History:
    """All that happened."""
    async with Cluster(directory, redis_kind=options.redis_kind, source=options.source) as cluster:
        await cluster.ready()
        client, chaos, enough = Client(cluster.urls), Faults(cluster), asyncio.Event()
        breaking = asyncio.create_task(_break(chaos, options, enough))
        tasks = await _load(client, options)
        enough.set()
        await breaking
        healed_at = time.monotonic()
        await asyncio.wait(tasks, timeout=options.heal_timeout)
        remains = await _remains(cluster, healed_at, options.heal_timeout)
        crashes = [*cluster.crashes, *await _end(tasks)]
        await client.close()
    is_lossy = any(fault.kind in LOSSY for fault in chaos.history)
    return History(client.records, chaos.history, remains, is_lossy=is_lossy, crashes=crashes)


async def _load(client: Client, options: Options) -> list["asyncio.Task[None]"]:
    """Send all requests, evenly over the time of the run as far as the system keeps up."""
    slots = asyncio.Semaphore(MAX_OPEN)
    start, seconds = time.monotonic(), options.minutes * 60
    tasks: list[asyncio.Task[None]] = []
    for request in requests(options.seed, options.num_requests):
        await asyncio.sleep(start + request.number * seconds / options.num_requests - time.monotonic())
        if not await _is_free(slots, start + MAX_DELAY * seconds - time.monotonic()):
            break
        task = asyncio.create_task(client.run(request))
        task.add_done_callback(lambda _task: slots.release())
        tasks.append(task)
    return tasks


async def _is_free(slots: asyncio.Semaphore, timeout: float) -> bool:
    try:
        async with asyncio.timeout(timeout):
            await slots.acquire()
    except TimeoutError:
        return False
    return True


async def _break(chaos: Faults, options: Options, enough: asyncio.Event) -> None:
    """Inject faults until it is enough; return when what was broken works again."""
    start = time.monotonic()
    running: list[asyncio.Task[None]] = []
    for planned in faults(options.seed, options.kinds, every=options.every):
        with suppress(TimeoutError):
            async with asyncio.timeout(start + planned.at - time.monotonic()):
                await enough.wait()
        if enough.is_set():
            break
        running.append(asyncio.create_task(chaos.inject(planned)))
    await asyncio.gather(*running)


async def _end(tasks: Sequence["asyncio.Task[None]"]) -> list[str]:
    """Stop clients that still wait. Returns what went wrong in a client itself."""
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [f"a client of the harness: {error!r}" for error in results if isinstance(error, Exception)]


async def _remains(cluster: Cluster, healed_at: float, timeout: float) -> Remains:
    """Wait until the queue is empty, and look at all that Redis holds."""
    async with Redis(port=cluster.redis.port, decode_responses=True, socket_timeout=30) as client:
        remains = Remains()
        with suppress(AssertionError):
            left = timeout - (time.monotonic() - healed_at)
            await eventually(lambda: _is_empty(client), "the queue is empty", deadline=max(left, 1))
            remains.drained_after = time.monotonic() - healed_at
        remains.waiting, remains.pending = await _entries(client)
        letters: Any = await client.xrange(KEYS.dead)
        remains.dead = [(fields["id"], _request_of(fields["request"])[0]) for _, fields in letters]
        async for key in client.scan_iter(KEYS.job("*"), count=1000):
            remains.jobs.append(_state(key, await client.hgetall(key)))
    with cluster.redis.client() as blocking:
        remains.without_ttl = keys_without_ttl(blocking)
    return remains


async def _is_empty(client: Redis) -> bool:
    try:
        return await _entries(client) == (0, 0) and await _num_open(client) == 0
    except RedisError:
        return False


async def _entries(client: Redis) -> tuple[int, int]:
    """Entries in all job streams, and how many of them are pending."""
    waiting = pending = 0
    for job_class in JOB_CLASSES:
        stream = KEYS.jobs(job_class)
        waiting += await client.xlen(stream)
        with suppress(RedisError):  # there is no group
            pending += (await client.xpending(stream, GROUP))["pending"]
    return waiting, pending


async def _num_open(client: Redis) -> int:
    """Jobs that have not ended; entries of ended ones stay in their stream until a worker skips them."""
    keys = [key async for key in client.scan_iter(KEYS.job("*"), count=1000)]
    async with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hget(key, "status")
        return sum(status in (QUEUED, RUNNING) for status in await pipeline.execute())


def _state(key: str, fields: dict[Any, Any]) -> JobState:
    number, part = _request_of(fields.get("request", "{}"))
    error = json.loads(fields.get("error") or "{}")
    job_id = key.rpartition(":")[2]
    return JobState(job_id, number, part, fields.get("status", ""), error.get("code", ""), fields.get("result", ""))


def _request_of(text: str) -> tuple[int, int]:
    """Number of the request that a job belongs to, and which of its prompts it is."""
    prompt = bytes(json.loads(text).get("prompt_token_ids", [])).decode()
    return number_of(prompt), int(json.loads(prompt).get("part", 0)) if prompt else 0
