"""`forebay dead` on a queue with a poison job."""

import json

import pytest
from redis.asyncio import Redis

from shared.keys import QueueKeys
from shared.queue import JobQueue
from tests.support.eventually import eventually
from tests.support.forebay_process import run_forebay
from tests.support.jobs import MODEL, fake_job


@pytest.fixture
async def queue(redis_client: Redis) -> JobQueue:
    """Holds one dead letter, of job `poison`."""
    queue = JobQueue(redis_client, QueueKeys("forebay", MODEL))
    await queue.enqueue([fake_job("poison", "do not eat")], max_waiting=9, timeout=60, keep=30)

    async def is_given_up() -> bool:
        await queue.take("w", 1, nonce="n", max_starts=1)
        await queue.reap("w", lease=0.001, count=10, latest=1e11, cursors=None)
        return (await queue.job("poison"))["status"] == "failed"

    await eventually(is_given_up, "the job is given up")
    return queue


@pytest.fixture
def settings(redis_url: str) -> dict[str, str]:
    return {"FOREBAY_REDIS_URL": redis_url, "FOREBAY_MODEL": MODEL}


async def test_list_and_show(queue: JobQueue, settings: dict[str, str]) -> None:
    listed = run_forebay("dead", "list", **settings)
    assert listed.returncode == 0
    assert listed.stdout.startswith("poison ")
    assert "given up" in listed.stdout
    shown = json.loads(run_forebay("dead", "show", "poison", **settings).stdout)
    assert shown["request"]["prompt_token_ids"] == list(fake_job("poison", "do not eat").prompt_token_ids)
    assert shown["num_starts"] == 1


async def test_requeue_makes_a_new_job(queue: JobQueue, settings: dict[str, str]) -> None:
    done = run_forebay("dead", "requeue", "poison", **settings)
    assert done.returncode == 0, done.stderr
    (delivery,) = await queue.take("w", 1, nonce="n", max_starts=1)
    assert delivery.request.id == done.stdout.strip() != "poison"
    assert delivery.request.prompt_token_ids == fake_job("poison", "do not eat").prompt_token_ids
    assert await queue.client.xlen(queue.keys.dead) == 0


async def test_drop_forgets_it(queue: JobQueue, settings: dict[str, str]) -> None:
    assert run_forebay("dead", "drop", "poison", **settings).returncode == 0
    assert run_forebay("dead", "list", **settings).stdout == ""
    again = run_forebay("dead", "drop", "poison", **settings)
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1


async def test_redis_that_is_away_is_one_line() -> None:
    result = run_forebay("dead", "list", FOREBAY_REDIS_URL="redis://127.0.0.1:1/0")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
