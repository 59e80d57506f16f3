"""The script that brings back what Redis has lost: every answer of it, and what it leaves in Redis."""

from collections.abc import Sequence

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from api.transcript import Transcript
from shared.keys import QueueKeys
from shared.messages import CANCELLED, EXPIRED, FINISHED, QUEUED, TOKEN, Event, running_hash
from shared.queue import Delivery, Ending, JobQueue, Resubmission, Verdict
from tests.support.eventually import eventually
from tests.support.jobs import MODEL, fake_job

KEYS = QueueKeys("forebay", MODEL)
JOB = fake_job("a")


@pytest.fixture
def queue(redis_client: Redis) -> JobQueue:
    return JobQueue(redis_client, KEYS)


def events(pieces: Sequence[str], epoch: str = "1:w", job_id: str = "a") -> list[Event]:
    """One event a piece, one token a character."""
    result: list[Event] = []
    digest, num_tokens = "", 0
    for seq, piece in enumerate(pieces, start=1):
        tokens = tuple(piece.encode())
        digest, num_tokens = running_hash(digest, tokens), num_tokens + len(tokens)
        result.append(Event(job_id, seq, epoch, TOKEN, tokens, piece, num_tokens, digest))
    return result


async def enqueue(queue: JobQueue, *, timeout: float = 60) -> None:
    await queue.enqueue([JOB], max_waiting=100, timeout=timeout, keep=30)


async def take(queue: JobQueue, worker: str) -> list[Delivery]:
    return await queue.take(worker, 10, nonce=worker, max_starts=3)


async def run(queue: JobQueue, *pieces: str) -> str:
    """Let a worker `w` log these events; returns its epoch."""
    await enqueue(queue)
    (delivery,) = await take(queue, "w")
    await emit(queue, events(pieces, delivery.epoch))
    return delivery.epoch


async def emit(queue: JobQueue, new: Sequence[Event]) -> list[Verdict]:
    replies = await queue.emit([(event, "") for event in new])
    return [reply[0] for reply in replies if not isinstance(reply, Exception)]


async def lose_tail(queue: JobQueue, *pieces: str, epoch: str = "1:w") -> None:
    """The log is another one now."""
    await queue.client.delete(KEYS.events("a"))
    for event in events(pieces, epoch):
        fields = {"type": TOKEN, "epoch": epoch, "tokens": "[]", "text": event.text}
        numbers = {"n": event.num_tokens, "hash": event.hash}
        await queue.client.xadd(KEYS.events("a"), fields | numbers, id=f"{event.seq}-0")
    await queue.client.expire(KEYS.events("a"), 60)


async def resubmit(queue: JobQueue, *pieces: str, age: float = 5, timeout: float = 60) -> Resubmission:
    """By a reader that has these events."""
    first = 2.0 if pieces else None
    return await queue.resubmit(JOB, events(pieces), age=age, timeout=timeout, keep=30, first_token=first)


async def texts(queue: JobQueue) -> list[str]:
    return [event.text for event in await queue.read_log("a", 0)]


async def num_entries(queue: JobQueue) -> dict[str, int]:
    names = ("suspect", "resume", "interactive", "batch")
    return {name: n for name in names if (n := await queue.client.xlen(KEYS.jobs(name)))}


async def test_a_lost_job_is_built_again_word_for_word(queue: JobQueue) -> None:
    await run(queue, "A", "BC", "\u20ac")
    before = await queue.read_log("a", 0)
    await queue.client.flushall()
    assert await resubmit(queue, "A", "BC", "\u20ac") is Resubmission.DONE
    assert await queue.read_log("a", 0) == before
    job = await queue.job("a")
    assert (job["status"], job["class"], job["epoch"]) == (QUEUED, "resume", "")
    assert JOB.from_json(job["request"]) == JOB
    assert await num_entries(queue) == {"resume": 1}


async def test_a_job_lost_before_its_first_event_is_built_again(queue: JobQueue) -> None:
    assert await resubmit(queue) is Resubmission.DONE
    (delivery,) = await take(queue, "w")
    assert (delivery.request, delivery.log) == (JOB, ())
    assert await emit(queue, events(["A"], delivery.epoch)) == [Verdict.OK]


async def test_it_goes_on_behind_what_the_reader_has(queue: JobQueue) -> None:
    assert await resubmit(queue, "A", "B") is Resubmission.DONE
    (delivery,) = await take(queue, "w2")
    assert [event.text for event in delivery.log] == ["A", "B"]
    assert 50 < delivery.time_left <= 55
    assert await emit(queue, events(["A", "B", "C"], delivery.epoch)[2:]) == [Verdict.OK]
    ending = Ending("a", delivery.epoch, 4, FINISHED, "stop", None, "ABC")
    assert await queue.finish([ending]) == [Verdict.OK]
    end = (await queue.read_log("a", 3))[0]
    assert (end.type, end.num_tokens, end.data["timing"]["first_token_ms"]) == (FINISHED, 3, 2000)
    assert end.data["timing"]["total_ms"] >= 5000
    assert await num_entries(queue) == {}


async def test_repeating_it_changes_nothing(queue: JobQueue) -> None:
    await resubmit(queue, "A", "B")
    job, log = await queue.job("a"), await queue.read_log("a", 0)
    assert [await resubmit(queue, "A", "B") for _ in range(3)] == [Resubmission.NOT_NEEDED] * 3
    assert (await queue.job("a"), await queue.read_log("a", 0)) == (job, log)
    assert await num_entries(queue) == {"resume": 1}


async def test_a_repetition_that_comes_late_does_not_disturb_the_next_worker(queue: JobQueue) -> None:
    await resubmit(queue, "A")
    (delivery,) = await take(queue, "w2")
    await emit(queue, events(["A", "B"], delivery.epoch)[1:])
    assert await resubmit(queue, "A") is Resubmission.NOT_NEEDED
    assert await emit(queue, events(["A", "B", "C"], delivery.epoch)[2:]) == [Verdict.OK]


@pytest.mark.parametrize("seen", [[], ["A"], ["A", "B"]])
async def test_a_log_that_continues_the_reader_is_left_alone(queue: JobQueue, seen: list[str]) -> None:
    epoch = await run(queue, "A", "B")
    assert await resubmit(queue, *seen) is Resubmission.NOT_NEEDED
    assert await emit(queue, events(["A", "B", "C"], epoch)[2:]) == [Verdict.OK]


@pytest.mark.parametrize("log", [[], ["A"], ["A", "X"], ["A", "X", "Y", "Z"], ["AB"], ["AB", "C", "D"]])
async def test_what_the_reader_has_wins_and_the_attempt_is_fenced(queue: JobQueue, log: list[str]) -> None:
    epoch = await run(queue, "A", "B", "C")
    await lose_tail(queue, *log)
    assert await resubmit(queue, "A", "B", "C") is Resubmission.DONE
    assert await texts(queue) == ["A", "B", "C"]
    assert await emit(queue, events(["A", "B", "C", "D"], epoch)[3:]) == [Verdict.FENCED]
    assert await queue.finish([Ending("a", epoch, 4, FINISHED)]) == [Verdict.FENCED]
    assert await queue.renew("w", {"a": epoch}) == ["a"]
    assert await num_entries(queue) == {"resume": 1}
    (delivery,) = await take(queue, "w")
    assert (delivery.epoch != epoch, [event.text for event in delivery.log]) == (True, ["A", "B", "C"])


async def test_an_entry_that_no_worker_has_taken_is_skipped_later(queue: JobQueue) -> None:
    await enqueue(queue)
    assert await resubmit(queue, "A") is Resubmission.DONE
    assert len(await take(queue, "w")) == 1
    assert await num_entries(queue) == {"resume": 1}


async def test_a_lost_hash_is_built_again_and_its_log_stays(queue: JobQueue) -> None:
    await run(queue, "A", "B")
    await queue.client.delete(KEYS.job("a"))
    assert await resubmit(queue, "A") is Resubmission.DONE
    assert await texts(queue) == ["A", "B"]
    deliveries = await take(queue, "w2")
    assert [len(delivery.log) for delivery in deliveries] == [2]


async def finish(queue: JobQueue, *pieces: str) -> None:
    epoch = await run(queue, *pieces)
    await queue.finish([Ending("a", epoch, len(pieces) + 1, FINISHED, "stop", None, "".join(pieces))])


async def test_a_finished_job_is_not_run_again_for_a_reader_that_it_continues(queue: JobQueue) -> None:
    await finish(queue, "A", "B")
    for seen in ([], ["A"], ["A", "B"]):
        assert await resubmit(queue, *seen) is Resubmission.NOT_NEEDED
    await queue.client.delete(KEYS.job("a"))
    assert await resubmit(queue, "A") is Resubmission.NOT_NEEDED
    assert await num_entries(queue) == {}


async def test_a_job_that_finished_differently_is_run_again(queue: JobQueue) -> None:
    await finish(queue, "A", "X")
    assert await resubmit(queue, "A", "B") is Resubmission.DONE
    job = await queue.job("a")
    assert job["status"] == QUEUED
    assert not {"finished_at", "result", "finish_reason", "completion_tokens", "error"} & set(job)
    assert await queue.client.pttl(KEYS.job("a")) > 31_000
    assert await texts(queue) == ["A", "B"]


async def test_a_finished_job_without_its_log_is_run_again(queue: JobQueue) -> None:
    await finish(queue, "A")
    await queue.client.delete(KEYS.events("a"))
    assert await resubmit(queue) is Resubmission.DONE
    assert len(await take(queue, "w2")) == 1


async def test_a_cancelled_job_is_not_resurrected(queue: JobQueue) -> None:
    epoch = await run(queue, "A", "B")
    await queue.finish([Ending("a", epoch, 3, CANCELLED, error={"code": CANCELLED, "message": "m"})])
    assert await resubmit(queue, "A", "B") is Resubmission.NOT_NEEDED
    assert await resubmit(queue, "A", "B", "C") is Resubmission.DONE
    log = await queue.read_log("a", 0)
    assert [event.text for event in log] == ["A", "B", "C", ""]
    assert (log[-1].type, log[-1].data["error"], log[-1].num_tokens) == (
        CANCELLED,
        {"code": CANCELLED, "message": "m"},
        3,
    )
    assert await num_entries(queue) == {}
    assert (await queue.job("a"))["status"] == CANCELLED


async def test_a_running_job_that_is_being_cancelled_ends_when_it_is_taken(queue: JobQueue) -> None:
    await run(queue, "A", "B")
    await queue.cancel("a")
    await lose_tail(queue, "A")
    assert await resubmit(queue, "A", "B") is Resubmission.DONE
    assert await take(queue, "w2") == []
    log = await queue.read_log("a", 0)
    assert [(event.seq, event.type) for event in log] == [(1, TOKEN), (2, TOKEN), (3, CANCELLED)]


async def test_a_job_whose_time_is_over_comes_back_to_expire(queue: JobQueue) -> None:
    assert await resubmit(queue, "A", age=100, timeout=10) is Resubmission.DONE
    await eventually(lambda: _is_expired(queue), "the job expires")
    log = await queue.read_log("a", 0)
    assert [(event.seq, event.type) for event in log] == [(1, TOKEN), (2, EXPIRED)]


async def _is_expired(queue: JobQueue) -> bool:
    return await queue.expire("a") == EXPIRED


async def test_a_reader_that_is_ahead_of_another_wins(queue: JobQueue) -> None:
    assert await resubmit(queue, "A") is Resubmission.DONE
    (delivery,) = await take(queue, "w")
    assert await resubmit(queue, "A", "B", "C") is Resubmission.DONE
    assert await emit(queue, events(["A", "X"], delivery.epoch)[1:]) == [Verdict.FENCED]
    assert [await resubmit(queue, *seen) for seen in ([], ["A"], ["A", "B"])] == [Resubmission.NOT_NEEDED] * 3
    assert await texts(queue) == ["A", "B", "C"]


@pytest.mark.parametrize("other", [["A", "X"], ["X"], ["A", "X", "Y"], ["AB", "C"]])
async def test_of_two_readers_that_have_seen_different_things_the_first_one_wins(
    queue: JobQueue, other: list[str]
) -> None:
    await run(queue, *other)
    assert await resubmit(queue, "A", "B") is Resubmission.DONE
    job, log = await queue.job("a"), await queue.read_log("a", 0)
    assert await resubmit(queue, *other) is Resubmission.REFUSED
    assert await resubmit(queue, "A", "B") is Resubmission.NOT_NEEDED
    assert (await queue.job("a"), await queue.read_log("a", 0)) == (job, log)


async def test_what_it_writes_expires(queue: JobQueue) -> None:
    await resubmit(queue, "A", "B")
    for key in (KEYS.job("a"), KEYS.events("a")):
        assert 80_000 < await queue.client.pttl(key) <= 85_000


async def test_it_wakes_the_workers(queue: JobQueue) -> None:
    async with queue.client.pubsub() as pubsub:
        await pubsub.subscribe(KEYS.control)
        await resubmit(queue, "A")

        async def message() -> object:
            return await pubsub.get_message(ignore_subscribe_messages=True)

        assert (await eventually(message, "a message comes"))["data"] == "wake"


async def test_without_memory_nothing_happens(queue: JobQueue) -> None:
    await run(queue, "A", "B")
    await lose_tail(queue, "A")
    await queue.client.config_set("maxmemory", 1)
    try:
        job = await queue.job("a")
        with pytest.raises(OutOfMemoryError):
            await resubmit(queue, "A", "B")
        assert (await queue.job("a"), await texts(queue)) == (job, ["A"])
    finally:
        await queue.client.config_set("maxmemory", 0)
    assert await resubmit(queue, "A", "B") is Resubmission.DONE


async def test_a_long_log_is_built_again_whole(queue: JobQueue) -> None:
    pieces = ["x"] * 9000  # more than Lua could unpack
    assert await resubmit(queue, *pieces) is Resubmission.DONE
    assert await queue.client.xlen(KEYS.events("a")) == 9000


async def test_a_transcript_keeps_events_as_they_were(queue: JobQueue) -> None:
    given = events(["A", "", "\u20ac\U0001f642", "BC"]) + events(["A"] * 5, "2:w")[4:]
    transcript = Transcript(JOB, timeout=60, keep=30)
    kept: list[Event] = []
    digest, num_tokens = "", 0
    for event in given:
        digest, num_tokens = running_hash(digest, event.token_ids), num_tokens + len(event.token_ids)
        kept.append(Event("a", event.seq, event.epoch, TOKEN, event.token_ids, event.text, num_tokens, digest))
        transcript.add(kept[-1])
    transcript.add(Event("a", 6, "2:w", FINISHED, (), "", num_tokens, digest))
    assert list(transcript.events()) == kept
    assert await transcript.resubmit(queue) is Resubmission.DONE
    assert await queue.read_log("a", 0) == kept
