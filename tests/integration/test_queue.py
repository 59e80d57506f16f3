"""The scripts against a real server: every answer they can give, and that a repeated call changes nothing."""

import asyncio

import pytest
from redis.asyncio import Redis

from shared.errors import QueueFullError
from shared.keys import JOB_CLASSES, QueueKeys
from shared.messages import CANCELLED, EXPIRED, FINISHED, RUNNING, TOKEN, Event, running_hash
from shared.pubsub import Subscriber
from shared.queue import Delivery, Ending, JobQueue, Verdict
from tests.support.eventually import eventually
from tests.support.jobs import MODEL, fake_job

KEYS = QueueKeys("forebay", MODEL)


@pytest.fixture
def queue(redis_client: Redis) -> JobQueue:
    return JobQueue(redis_client, KEYS)


async def enqueue(queue: JobQueue, *job_ids: str, max_waiting: int = 100, timeout: float = 60) -> int:
    jobs = [fake_job(job_id) for job_id in job_ids]
    return await queue.enqueue(jobs, max_waiting=max_waiting, timeout=timeout, keep=30)


async def take(
    queue: JobQueue, count: int = 10, worker: str = "w1", max_starts: int = 3, **options: object
) -> list[Delivery]:
    return await queue.take(worker, count, nonce=worker, max_starts=max_starts, **options)


async def start(queue: JobQueue, job_id: str = "a") -> Delivery:
    await enqueue(queue, job_id)
    (delivery,) = await take(queue)
    return delivery


def event(delivery: Delivery, seq: int, *, text: str = "t") -> tuple[Event, str]:
    """Event `seq` of a log that holds token 1 in event 1, token 2 in event 2, ..."""
    before = running_hash("", range(1, seq))
    return (
        Event(delivery.request.id, seq, delivery.epoch, TOKEN, (seq,), text, seq, running_hash(before, [seq])),
        before,
    )


async def emit(queue: JobQueue, delivery: Delivery, seq: int) -> Verdict:
    ((verdict, _),) = await queue.emit([event(delivery, seq)])
    return verdict


def ending(delivery: Delivery, seq: int, status: str = FINISHED) -> Ending:
    return Ending(delivery.request.id, delivery.epoch, seq, status, "stop" if status == FINISHED else "", None, "text")


async def finish(queue: JobQueue, delivery: Delivery, seq: int, status: str = FINISHED) -> Verdict:
    (verdict,) = await queue.finish([ending(delivery, seq, status)])
    return verdict


async def num_pending(queue: JobQueue) -> int:
    streams = [queue.keys.jobs(name) for name in JOB_CLASSES]
    present = [stream for stream in streams if await queue.client.exists(stream)]
    return sum([(await queue.client.xpending(stream, "workers"))["pending"] for stream in present])


async def num_entries(queue: JobQueue) -> int:
    return sum([await queue.client.xlen(queue.keys.jobs(name)) for name in JOB_CLASSES])


async def test_a_job_goes_from_queued_to_finished(queue: JobQueue) -> None:
    assert await enqueue(queue, "a") == 1
    assert (await queue.job("a"))["status"] == "queued"
    (delivery,) = await take(queue)
    assert delivery.request == fake_job("a")
    assert delivery.log == ()
    assert 0 < delivery.time_left <= 60
    assert await emit(queue, delivery, 1) is Verdict.OK
    assert await emit(queue, delivery, 2) is Verdict.OK
    assert await finish(queue, delivery, 3) is Verdict.OK
    job = await queue.job("a")
    assert (job["status"], job["result"], job["completion_tokens"]) == ("finished", "text", "2")
    log = await queue.read_log("a", 0)
    assert [item.type for item in log] == [TOKEN, TOKEN, FINISHED]
    assert log[-1].data["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert log[-1].data["finish_reason"] == "stop"
    assert (await num_entries(queue), await num_pending(queue)) == (0, 0)


async def test_enqueue_twice_is_one_job(queue: JobQueue) -> None:
    await enqueue(queue, "a", "b")
    await enqueue(queue, "a", "b")
    assert await num_entries(queue) == 2


async def test_jobs_are_accepted_together_or_not_at_all(queue: JobQueue) -> None:
    await enqueue(queue, "a", "b", max_waiting=4)
    with pytest.raises(QueueFullError) as error:
        await enqueue(queue, "c", "d", "e", max_waiting=4)
    assert (error.value.waiting, error.value.limit) == (2, 4)
    assert await num_entries(queue) == 2
    assert await queue.job("c") == {}
    assert await enqueue(queue, "c", "d", max_waiting=4) == 3


async def test_taken_jobs_are_not_waiting(queue: JobQueue) -> None:
    await enqueue(queue, "a", "b", max_waiting=2)
    await take(queue)
    assert await enqueue(queue, "c", "d", max_waiting=2) == 1


async def test_jobs_queued_before_the_first_worker_are_taken_in_order(queue: JobQueue) -> None:
    await enqueue(queue, "a", "b", "c")
    assert [delivery.request.id for delivery in await take(queue, 2)] == ["a", "b"]
    assert [delivery.request.id for delivery in await take(queue, 2, "w2")] == ["c"]
    assert await take(queue) == []


async def test_a_group_that_was_destroyed_is_made_again_at_the_start(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    await queue.client.xgroup_destroy(KEYS.jobs("interactive"), "workers")
    assert [delivery.request.id for delivery in await take(queue)] == ["a"]


async def test_jobs_of_a_lost_reply_are_recovered(queue: JobQueue) -> None:
    await enqueue(queue, "a", "b")
    await take(queue)
    assert await take(queue) == []
    (recovered,) = await take(queue, recover=["b"])
    assert recovered.request.id == "a"
    assert recovered.epoch == "2:w1"


async def test_an_event_is_logged_once(queue: JobQueue) -> None:
    delivery = await start(queue)
    assert await emit(queue, delivery, 1) is Verdict.OK
    assert await emit(queue, delivery, 1) is Verdict.ALREADY
    assert len(await queue.read_log("a", 0)) == 1


async def test_an_event_beyond_the_next_is_refused(queue: JobQueue) -> None:
    assert await emit(queue, await start(queue), 2) is Verdict.DIFFERS
    assert await queue.read_log("a", 0) == []


async def test_another_event_of_the_same_number_is_refused(queue: JobQueue) -> None:
    delivery = await start(queue)
    await emit(queue, delivery, 1)
    other = Event("a", 1, delivery.epoch, TOKEN, (9,), "x", 1, running_hash("", [9]))
    (reply,) = await queue.emit([(other, "")])
    assert reply == (Verdict.DIFFERS, 0)


async def test_an_attempt_that_is_over_can_write_nothing(queue: JobQueue) -> None:
    old = await start(queue)
    await emit(queue, old, 1)
    assert await queue.release("a", old.epoch) is Verdict.OK
    (new,) = await take(queue, worker="w2")
    assert await emit(queue, old, 2) is Verdict.FENCED
    assert await finish(queue, old, 2) is Verdict.FENCED
    assert await queue.release("a", old.epoch) is Verdict.FENCED
    assert await emit(queue, new, 2) is Verdict.OK


async def test_a_released_job_comes_first_and_brings_its_log(queue: JobQueue) -> None:
    old = await start(queue)
    await emit(queue, old, 1)
    await enqueue(queue, "b")
    await queue.release("a", old.epoch)
    first, second = await take(queue, worker="w2")
    assert (first.request.id, second.request.id) == ("a", "b")
    assert [item.token_ids for item in first.log] == [(1,)]
    assert first.epoch.startswith("1:"), "a release does not count as an attempt"


async def test_finish_twice_is_one_end(queue: JobQueue) -> None:
    delivery = await start(queue)
    assert await finish(queue, delivery, 1) is Verdict.OK
    assert await finish(queue, delivery, 1) is Verdict.ALREADY
    assert len(await queue.read_log("a", 0)) == 1


async def test_an_end_that_does_not_continue_the_log_is_refused(queue: JobQueue) -> None:
    assert await finish(queue, await start(queue), 3) is Verdict.DIFFERS


async def test_unknown_jobs(queue: JobQueue) -> None:
    delivery = await start(queue)
    await queue.client.delete(KEYS.job("a"))
    assert await emit(queue, delivery, 1) is Verdict.GONE
    assert await finish(queue, delivery, 1) is Verdict.GONE
    assert await queue.release("a", delivery.epoch) is Verdict.GONE
    assert await queue.cancel("a") is None
    assert await queue.expire("a") is None


async def test_a_queued_job_is_cancelled_at_once_and_never_taken(queue: JobQueue) -> None:
    await enqueue(queue, "a", "b")
    assert await queue.cancel("a") == CANCELLED
    assert await queue.cancel("a") == CANCELLED
    assert [item.type for item in await queue.read_log("a", 0)] == [CANCELLED]
    assert [delivery.request.id for delivery in await take(queue)] == ["b"]
    assert await num_entries(queue) == 1


async def test_a_running_job_is_cancelled_at_its_next_event(queue: JobQueue) -> None:
    delivery = await start(queue)
    await emit(queue, delivery, 1)
    assert await queue.cancel("a") == RUNNING
    assert await emit(queue, delivery, 2) is Verdict.CANCELLED
    assert await finish(queue, delivery, 2, CANCELLED) is Verdict.OK
    assert await queue.cancel("a") == CANCELLED


async def test_a_job_cancelled_after_its_release_ends_when_it_is_taken(queue: JobQueue) -> None:
    delivery = await start(queue)
    await queue.cancel("a")
    await queue.release("a", delivery.epoch)
    assert await take(queue) == []
    assert [item.type for item in await queue.read_log("a", 0)] == [CANCELLED]
    assert await num_entries(queue) == 0


async def test_a_finished_job_cannot_be_cancelled(queue: JobQueue) -> None:
    delivery = await start(queue)
    await finish(queue, delivery, 1)
    assert await queue.cancel("a") == FINISHED
    assert await emit(queue, delivery, 2) is Verdict.FENCED


async def test_a_job_expires_in_the_queue(queue: JobQueue) -> None:
    await enqueue(queue, "a", timeout=0.001)
    await eventually(lambda: _is_expired(queue), "the job expires")
    assert await take(queue) == []
    assert await num_entries(queue) == 0


async def _is_expired(queue: JobQueue) -> bool:
    return await queue.expire("a") == EXPIRED


async def test_a_job_expires_when_it_is_taken_too_late(queue: JobQueue) -> None:
    await enqueue(queue, "a", timeout=0.001)
    deadline = int((await queue.job("a"))["deadline_at"])
    await eventually(lambda: _is_past(queue.client, deadline), "the deadline passes")
    assert await take(queue) == []
    (end,) = await queue.read_log("a", 0)
    assert end.type == EXPIRED
    assert end.data["error"]["code"] == "expired"


async def _is_past(client: Redis, deadline_ms: int) -> bool:
    seconds, microseconds = await client.time()
    return seconds * 1000 + microseconds // 1000 > deadline_ms


async def test_nothing_expires_before_its_deadline(queue: JobQueue) -> None:
    await enqueue(queue, "a")
    assert await queue.expire("a") == "queued"


async def test_a_running_job_whose_worker_is_gone_can_be_expired(queue: JobQueue) -> None:
    await enqueue(queue, "a", timeout=0.2)
    (delivery,) = await take(queue)
    await eventually(lambda: _is_expired(queue), "the job expires")
    assert await emit(queue, delivery, 1) is Verdict.FENCED
    assert (await num_entries(queue), await num_pending(queue)) == (0, 0)


async def test_entries_that_were_trimmed_do_not_stop_a_worker(queue: JobQueue) -> None:
    await enqueue(queue, "a", "b")
    await take(queue, 1)
    await queue.client.xtrim(KEYS.jobs("interactive"), maxlen=0, approximate=False)
    assert await take(queue, recover=[]) == []
    assert await num_pending(queue) == 0


async def test_every_key_of_a_job_ends(queue: JobQueue) -> None:
    delivery = await start(queue)
    await emit(queue, delivery, 1)
    for key in (KEYS.job("a"), KEYS.events("a")):
        assert await queue.client.pttl(key) > 60_000
    await finish(queue, delivery, 2)
    for key in (KEYS.job("a"), KEYS.events("a")):
        assert 0 < await queue.client.pttl(key) <= 30_000


async def test_scripts_are_sent_again_after_they_were_flushed(queue: JobQueue) -> None:
    delivery = await start(queue)
    await queue.client.script_flush()
    assert await emit(queue, delivery, 1) is Verdict.OK
    assert await finish(queue, delivery, 2) is Verdict.OK


async def test_what_is_published_is_what_is_logged(queue: JobQueue, redis_url: str) -> None:
    received: list[tuple[Event, str]] = []
    subscriber = Subscriber(
        redis_url, on_message=lambda _, text: received.append(Event.from_message(text)), on_gap=lambda: None
    )
    task = asyncio.create_task(subscriber.run())
    await subscriber.subscribe(KEYS.tokens("a"))
    delivery = await start(queue)
    ((_, num_readers),) = await queue.emit([event(delivery, 1, text='"é\n🙂\x00')])
    await finish(queue, delivery, 2)
    await eventually(lambda: len(received) == 2, "both events arrive")
    task.cancel()
    assert num_readers == 1
    assert [item for item, _ in received] == await queue.read_log("a", 0)
    assert [before for _, before in received] == ["", running_hash("", [1])]
