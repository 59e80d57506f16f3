"""Leases in the scripts: who holds a job, who may take it, and when it is given up."""

import pytest
from redis.asyncio import Redis

from shared.keys import QueueKeys
from shared.messages import CANCELLED, FAILED, TOKEN, Event, running_hash
from shared.queue import Delivery, JobQueue, Verdict
from tests.support.eventually import eventually
from tests.support.jobs import MODEL, fake_job

KEYS = QueueKeys("forebay", MODEL)
LEASE = 0.05  # s
FAR = 1e11  # s, Redis clock: any time is early enough


@pytest.fixture
def queue(redis_client: Redis) -> JobQueue:
    return JobQueue(redis_client, KEYS)


async def enqueue(queue: JobQueue, *job_ids: str) -> None:
    await queue.enqueue([fake_job(job_id) for job_id in job_ids], max_waiting=100, timeout=60, keep=30)


async def take(queue: JobQueue, worker: str, count: int = 10) -> list[Delivery]:
    return await queue.take(worker, count, nonce=worker, max_starts=3)


async def emit(queue: JobQueue, delivery: Delivery, seq: int) -> Verdict:
    before = running_hash("", range(1, seq))
    event = Event(delivery.request.id, seq, delivery.epoch, TOKEN, (seq,), "t", seq, running_hash(before, [seq]))
    ((verdict, _),) = await queue.emit([(event, before)])
    return verdict


async def reap(queue: JobQueue) -> list[str]:
    return (await queue.reap("reaper", lease=LEASE, count=100, latest=FAR, cursors=None)).reaped


async def reaped(queue: JobQueue, *job_ids: str) -> None:
    """Wait until these jobs, which nobody renews, were reaped."""
    found: set[str] = set()

    async def all_found() -> bool:
        found.update(await reap(queue))
        return found >= set(job_ids)

    await eventually(all_found, f"the leases of {job_ids} run out")


async def test_a_job_whose_lease_runs_out_is_queued_again_as_a_suspect(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    (first,) = await take(queue, "w1")
    await emit(queue, first, 1)
    await reaped(queue, "a")
    (second,) = await take(queue, "w2")
    assert (first.is_suspect, second.is_suspect) == (False, True)
    assert [event.token_ids for event in second.log] == [(1,)]
    assert await emit(queue, first, 2) is Verdict.FENCED
    assert await emit(queue, second, 2) is Verdict.OK
    assert (await queue.job("a"))["lost_by"] == "w1"


async def test_a_renewed_lease_does_not_run_out(queue: JobQueue) -> None:
    await enqueue(queue, "a", "b")
    kept, left = await take(queue, "w1")

    async def left_is_reaped() -> bool:
        assert await queue.renew("w1", {"a": kept.epoch}) == []
        found = await reap(queue)
        assert "a" not in found
        return found == ["b"]

    await eventually(left_is_reaped, "the lease of the other job runs out")
    assert await queue.renew("w1", {"a": kept.epoch, "b": left.epoch, "gone": "1:w1"}) == ["b", "gone"]


async def test_a_renewal_does_not_count_as_a_delivery(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    (delivery,) = await take(queue, "w1")
    for _ in range(5):
        await queue.renew("w1", {"a": delivery.epoch})
    (entry,) = await queue.client.xpending_range(KEYS.jobs("interactive"), "workers", "-", "+", 10)
    assert (entry["consumer"], entry["times_delivered"]) == ("w1", 1)


async def test_a_worker_that_lost_a_job_cannot_renew_it(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    (old,) = await take(queue, "w1")
    await reaped(queue, "a")
    (new,) = await take(queue, "w2")
    assert await queue.renew("w1", {"a": old.epoch}) == ["a"]
    assert await queue.renew("w2", {"a": new.epoch}) == []
    (entry,) = await queue.client.xpending_range(KEYS.jobs("suspect"), "workers", "-", "+", 10)
    assert entry["consumer"] == "w2"


async def test_jobs_of_a_lost_reply_are_reaped_too(queue: JobQueue) -> None:
    """Delivered into a dead connection: no worker knows them, nobody renews them."""
    await enqueue(queue, "a", "b")
    await take(queue, "w1")
    await reaped(queue, "a", "b")


async def test_suspects_come_first_and_one_at_a_time(queue: JobQueue) -> None:
    await enqueue(queue, "a", "b")
    await take(queue, "w1")
    await reaped(queue, "a", "b")
    await enqueue(queue, "c")
    assert [[d.request.id for d in await take(queue, "w2")] for _ in range(3)] == [["a"], ["b"], ["c"]]


async def test_a_job_that_only_kills_workers_is_given_up(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    for number in range(3):
        (delivery,) = await take(queue, f"w{number}")
        await reaped(queue, "a")
    assert await take(queue, "w3") == []
    (end,) = await queue.read_log("a", 0)
    assert (end.type, end.data["error"]["code"]) == (FAILED, "poison")
    ((_, letter),) = await queue.client.xrange(KEYS.dead)
    assert (letter["id"], letter["starts"], letter["last_worker"]) == ("a", "3", "w2")
    assert letter["request"] == delivery.request.to_json()
    assert await queue.client.xlen(KEYS.jobs("suspect")) == 0


async def test_progress_sets_the_count_back(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    for number in range(1, 8):
        (delivery,) = await take(queue, f"w{number}")
        assert await emit(queue, delivery, number) is Verdict.OK
        await reaped(queue, "a")
    assert len(await take(queue, "last")) == 1


async def test_a_hand_back_does_not_count_as_a_death(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    for number in range(8):
        (delivery,) = await take(queue, f"w{number}")
        assert await queue.release("a", delivery.epoch) is Verdict.OK


async def test_a_suspect_that_is_handed_back_unproved_stays_one(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    await take(queue, "w1")
    await reaped(queue, "a")
    (suspect,) = await take(queue, "w2")
    await queue.release("a", suspect.epoch)
    (again,) = await take(queue, "w3")
    assert again.is_suspect
    await emit(queue, again, 1)
    await queue.release("a", again.epoch)
    (proved,) = await take(queue, "w4")
    assert not proved.is_suspect


async def test_a_job_cancelled_while_its_worker_was_dead_is_over(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    await take(queue, "w1")
    await queue.cancel("a")
    await reaped(queue, "a")
    assert await take(queue, "w2") == []
    (end,) = await queue.read_log("a", 0)
    assert end.type == CANCELLED


async def test_entries_of_jobs_that_are_gone_are_removed(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    await take(queue, "w1")
    await queue.client.delete(KEYS.job("a"))
    await eventually(lambda: _is_empty(queue), "the entry is removed")


async def _is_empty(queue: JobQueue) -> bool:
    assert await reap(queue) == []
    return await queue.client.xlen(KEYS.jobs("interactive")) == 0


async def test_a_sweep_that_comes_too_late_takes_nothing(queue: JobQueue) -> None:
    """It may have waited in a Redis that hung, in front of the owner's renewal."""
    await enqueue(queue, "a")
    await take(queue, "w1")
    await eventually(lambda: _has_idled(queue), "the lease has run out")
    seconds, _ = await queue.client.time()
    late = await queue.reap("reaper", lease=LEASE, count=100, latest=seconds - 1, cursors=["1-1"] * 4)
    assert (late.is_late, late.reaped, late.cursors) == (True, [], ["1-1"] * 4)
    assert abs(late.now - seconds) < 60
    assert await reap(queue) == ["a"]


async def _has_idled(queue: JobQueue) -> bool:
    (entry,) = await queue.client.xpending_range(KEYS.jobs("interactive"), "workers", "-", "+", 10)
    return bool(entry["time_since_delivered"] > LEASE * 1000)


async def test_progress_that_redis_has_forgotten_sets_the_count_back(queue: JobQueue) -> None:
    """Found by `make chaos`: an innocent job was given up."""
    await enqueue(queue, "a")
    for number in range(2):
        await take(queue, f"w{number}")
        await reaped(queue, "a")
    (delivery,) = await take(queue, "w2")
    await emit(queue, delivery, 1)
    seen = await queue.read_log("a", 0)
    await queue.client.delete(KEYS.events("a"))
    await queue.resubmit(delivery.request, seen, age=1, timeout=60, keep=30, first_token=0.5)
    assert len(await take(queue, "w3")) == 1
