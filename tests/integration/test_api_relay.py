"""The relay against hints that lie: it delivers the log, in order, once."""

import asyncio
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from api.hub import Subscription
from api.relay import MAX_RECOVERIES, Relay
from api.transcript import Transcript
from shared.messages import TOKEN, Event, JobRequest, SamplingParams, running_hash
from shared.redis import connect
from tests.support.eventually import eventually
from tests.support.scripted_worker import Attempt, ScriptedWorker

JOB = "0" * 32


class Reader:
    """A relay whose hints the test makes."""

    def __init__(
        self,
        worker: ScriptedWorker,
        *,
        watchdog_interval: float = 60,
        timeout: float = 60,
        transcript: Transcript | None = None,
    ) -> None:
        self.subscription = Subscription(1000)
        self.relay = Relay(
            worker.queue,
            JOB,
            self.subscription,
            watchdog_interval=watchdog_interval,
            timeout=timeout,
            transcript=transcript,
        )
        self.events: list[Event] = []
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self.relay.batches():
            self.events += batch

    def hint(self, event: Event, previous_hash: str) -> None:
        self.subscription.push(event.to_message(previous_hash))

    async def texts(self) -> list[str]:
        """The texts of all events, once the relay has ended."""
        await asyncio.wait_for(self.task, 20)
        return [event.text for event in self.events]


@pytest.fixture
async def attempt(worker: ScriptedWorker) -> Attempt:
    """A running job."""
    request = JobRequest(JOB, worker.model, (1,), SamplingParams(max_tokens=1000), 0, True)
    await worker.queue.enqueue([request], max_waiting=10, timeout=60, keep=60)
    return (await worker.take())[0]


async def log(attempt: Attempt, *pieces: str) -> list[tuple[Event, str]]:
    """Write events into the log (nobody is subscribed: the test makes the hints)."""
    events = [attempt.next_event(piece) for piece in pieces]
    await attempt.emit_all(events)
    return events


async def end(attempt: Attempt, reader: Reader) -> None:
    """Finish the job and let the reader find out."""
    await attempt.finish()
    reader.subscription.mark_stale()


async def test_hints_in_order_are_delivered_without_reading_the_log(worker: ScriptedWorker, attempt: Attempt) -> None:
    reader = Reader(worker)
    for number in range(3):  # hints of events that no log holds
        reader.hint(*attempt.next_event(str(number)))
    await eventually(lambda: len(reader.events) == 3, "three hints are delivered")
    reader.task.cancel()


async def test_doubled_hints_are_delivered_once(worker: ScriptedWorker, attempt: Attempt) -> None:
    reader = Reader(worker)
    for event in await log(attempt, "A", "B"):
        reader.hint(*event)
        reader.hint(*event)
    await end(attempt, reader)
    assert await reader.texts() == ["A", "B", ""]


async def test_hints_out_of_order_are_delivered_in_order(worker: ScriptedWorker, attempt: Attempt) -> None:
    reader = Reader(worker)
    for event in reversed(await log(attempt, "A", "B", "C")):
        reader.hint(*event)
    await end(attempt, reader)
    assert await reader.texts() == ["A", "B", "C", ""]


async def test_a_missing_hint_is_read_from_the_log(worker: ScriptedWorker, attempt: Attempt) -> None:
    reader = Reader(worker)
    first, _, third = await log(attempt, "A", "B", "C")
    reader.hint(*first)
    reader.hint(*third)
    await end(attempt, reader)
    assert await reader.texts() == ["A", "B", "C", ""]


async def test_an_event_of_another_job_is_dropped(worker: ScriptedWorker, attempt: Attempt) -> None:
    reader = Reader(worker)
    ((event, previous),) = await log(attempt, "A")
    reader.hint(replace(event, job_id="f" * 32, text="foreign"), previous)
    reader.hint(event, previous)
    await end(attempt, reader)
    assert await reader.texts() == ["A", ""]


async def test_a_hint_of_an_attempt_that_went_on_differently_is_not_believed(
    worker: ScriptedWorker, attempt: Attempt
) -> None:
    reader = Reader(worker)
    (first, (event, previous)) = await log(attempt, "A", "B")
    reader.hint(*first)
    reader.hint(replace(event, text="spliced"), "another hash")
    reader.hint(replace(event, text="changed", token_ids=(1, 2, 3)), previous)
    await end(attempt, reader)
    assert await reader.texts() == ["A", "B", ""]


@pytest.mark.parametrize("message", ["", "no JSON", "[]", "{}", '{"prev":""}', '{"prev":"","token_ids":5}'])
async def test_what_is_no_event_is_no_harm(worker: ScriptedWorker, attempt: Attempt, message: str) -> None:
    reader = Reader(worker)
    reader.subscription.push(message)
    for event in await log(attempt, "A"):
        reader.hint(*event)
    await end(attempt, reader)
    assert await reader.texts() == ["A", ""]


async def test_the_watchdog_finds_events_that_no_hint_told(worker: ScriptedWorker, attempt: Attempt) -> None:
    reader = Reader(worker, watchdog_interval=0.05)
    await log(attempt, "A", "B")
    await attempt.finish()
    assert await reader.texts() == ["A", "B", ""]


async def test_a_long_log_is_read_in_pages(worker: ScriptedWorker, attempt: Attempt) -> None:
    await log(attempt, *(["x"] * 1000))
    await attempt.finish()
    reader = Reader(worker)
    reader.subscription.mark_stale()
    assert len(await reader.texts()) == 1001
    assert [event.seq for event in reader.events] == list(range(1, 1002))


async def test_a_log_that_does_not_continue_what_was_delivered_is_an_error(
    worker: ScriptedWorker, attempt: Attempt, redis_client: Redis
) -> None:
    """Redis has lost the tail of the log and another attempt wrote another one."""
    ((event, previous),) = await log(attempt, "A")
    reader = Reader(worker, watchdog_interval=0.05)
    reader.hint(replace(event, text="lost", hash="", token_ids=()), previous)
    await eventually(lambda: reader.events, "the first event is delivered")
    await log(attempt, "B")
    reader.subscription.mark_stale()
    assert await reader.texts() == ["lost", ""]
    assert reader.events[-1].data["error"]["code"] == "job_lost"


async def test_a_job_that_is_unknown_ends_with_an_error(worker: ScriptedWorker) -> None:
    reader = Reader(worker, watchdog_interval=0.05)
    await reader.texts()
    assert reader.events[-1].data["error"]["code"] == "job_lost"


async def test_a_log_that_vanished_after_the_end_is_an_error(
    worker: ScriptedWorker, attempt: Attempt, redis_client: Redis
) -> None:
    await attempt.finish()
    await redis_client.delete(worker.queue.keys.events(JOB))
    reader = Reader(worker, watchdog_interval=0.05)
    await reader.texts()
    assert reader.events[-1].data["error"]["code"] == "job_lost"


async def test_a_redis_that_stays_away_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.relay.OUTAGE_SLACK", 0.1)
    client = connect("redis://127.0.0.1:1/0")
    reader = Reader(ScriptedWorker(client), watchdog_interval=0.01, timeout=0)
    await reader.texts()
    assert reader.events[-1].data["error"]["code"] == "redis_unavailable"
    await client.aclose()


async def test_closing_ends_the_stream_and_names_the_job(worker: ScriptedWorker, attempt: Attempt) -> None:
    reader = Reader(worker)
    reader.subscription.close()
    await reader.texts()
    error = reader.events[-1].data["error"]
    assert error["code"] == "shutting_down"
    assert f"/jobs/{JOB}" in error["message"]
    assert await worker.status(JOB) == "running"


def owner(worker: ScriptedWorker, attempt: Attempt) -> Reader:
    """The reader that has submitted the job."""
    return Reader(worker, watchdog_interval=0.05, transcript=Transcript(attempt.request, timeout=60, keep=60))


async def seen(reader: Reader, count: int) -> None:
    await eventually(lambda: len(reader.events) == count, f"{count} events are delivered")


async def test_a_lost_job_is_submitted_again_with_what_was_delivered(
    worker: ScriptedWorker, attempt: Attempt, redis_client: Redis
) -> None:
    reader = owner(worker, attempt)
    await log(attempt, "A", "BC")
    await seen(reader, 2)
    await redis_client.flushall()
    (again,) = await worker.take()
    assert again.text == "ABC"
    await log(again, "D")
    await end(again, reader)
    assert await reader.texts() == ["A", "BC", "D", ""]
    assert [event.seq for event in reader.events] == [1, 2, 3, 4]


async def test_a_lost_tail_is_noticed_although_nothing_new_comes(
    worker: ScriptedWorker, attempt: Attempt, redis_client: Redis
) -> None:
    reader = owner(worker, attempt)
    await log(attempt, "A", "B")
    await seen(reader, 2)
    await redis_client.xdel(worker.queue.keys.events(JOB), "2-0")
    (again,) = await worker.take()
    assert again.text == "AB"
    await end(again, reader)
    assert await reader.texts() == ["A", "B", ""]


async def test_a_job_that_is_lost_again_and_again_is_given_up(
    worker: ScriptedWorker, attempt: Attempt, redis_client: Redis
) -> None:
    reader = owner(worker, attempt)
    for _ in range(MAX_RECOVERIES):
        await redis_client.flushall()
        await eventually(lambda: worker.status(JOB), "the job is submitted again")
    await redis_client.flushall()
    await reader.texts()
    assert reader.events[-1].data["error"]["code"] == "job_lost"


async def test_of_two_readers_that_have_seen_different_things_one_gets_the_error(
    worker: ScriptedWorker, attempt: Attempt, redis_client: Redis
) -> None:
    first = owner(worker, attempt)
    await log(attempt, "A", "B")
    await seen(first, 2)
    await redis_client.flushall()
    await eventually(lambda: worker.status(JOB), "the job is submitted again")
    second = owner(worker, attempt)
    second.hint(Event(JOB, 1, "1:x", TOKEN, (88,), "X", 1, running_hash("", [88])), "")
    assert await second.texts() == ["X", ""]
    assert second.events[-1].data["error"]["code"] == "job_lost"
    (again,) = await worker.take()
    await end(again, first)
    assert await first.texts() == ["A", "B", ""]


async def test_a_reader_that_cannot_submit_goes_on_once_another_one_has(
    worker: ScriptedWorker, attempt: Attempt, redis_client: Redis
) -> None:
    reader = Reader(worker, watchdog_interval=0.2)
    await log(attempt, "A", "B")
    await seen(reader, 2)
    await redis_client.flushall()
    submitter = owner(worker, attempt)
    (again,) = await worker.take()
    await log(again, "A", "B", "C")
    await again.finish()
    assert await reader.texts() == ["A", "B", "C", ""]
    assert await submitter.texts() == ["A", "B", "C", ""]
