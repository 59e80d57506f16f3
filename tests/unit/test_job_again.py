"""A worker gets a job again while it still runs an earlier attempt of it: Redis had lost it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.messages import TOKEN, Event, running_hash
from shared.queue import Delivery, Verdict, Write, Written
from tests.support.jobs import fake_job
from worker.consumer import Consumer
from worker.engines.fake import FakeEngine
from worker.inflight import InFlight
from worker.publisher import Publisher
from worker.sequence import Output
from worker.sequence import Sequence as Row

REQUEST = fake_job("a")


@dataclass
class Queue:
    """Hands out what the test says and answers every write with one verdict."""

    deliveries: list[Delivery] = field(default_factory=list)
    verdict: Verdict = Verdict.OK
    written: list[Write] = field(default_factory=list)
    released: list[tuple[str, str]] = field(default_factory=list)

    async def take(self, *_args: object, **_options: object) -> list[Delivery]:
        deliveries, self.deliveries = self.deliveries, []
        return deliveries

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        self.written += writes
        return [Written(emitted=(self.verdict, 1)) for _ in writes]

    async def release(self, job_id: str, epoch: str) -> Verdict:
        self.released.append((job_id, epoch))
        return Verdict.OK


class Worker:
    """Consumer and publisher; `engine` is what they tell the engine thread."""

    def __init__(self) -> None:
        self.queue: Any = Queue()
        self.jobs = InFlight()
        self.engine: list[str] = []
        self.publisher = Publisher(
            self.queue,
            self.jobs,
            abort=lambda job_id: self.engine.append(f"abort {job_id}"),
            on_change=lambda: None,
            max_pending_tokens=3,
        )
        self.consumer = Consumer(
            self.queue,
            self.jobs,
            worker_id="w",
            info=FakeEngine().info,
            run_row=self.run_row,
            lose=self.publisher.lose,
            poll_interval=1,
            max_starts=3,
        )

    def run_row(self, row: Row) -> None:
        self.engine.append(f"add {row.id} {row.epoch} {bytes(row.token_ids).decode()}")

    async def deliver(self, epoch: str, *log: Event) -> None:
        self.queue.deliveries.append(Delivery(REQUEST, epoch, 60, log))
        await self.consumer.fill()


LOGGED = Event("a", 1, "1:x", TOKEN, (65,), "A", 1, running_hash("", [65]))


async def test_the_old_row_leaves_the_engine_before_the_new_one_comes() -> None:
    worker = Worker()
    await worker.deliver("1:x")
    await worker.deliver("1:y", LOGGED)
    assert worker.engine == ["add a 1:x ", "abort a", "add a 1:y A"]
    assert worker.jobs.epochs == {"a": "1:y"}


async def test_late_outputs_of_the_old_row_are_forgotten() -> None:
    worker = Worker()
    await worker.deliver("1:x")
    worker.publisher.push([Output("a", "1:x", (66, 67), "BC")])
    await worker.deliver("1:y", LOGGED)
    worker.publisher.push([Output("a", "1:x", (68,), "D"), Output("a", "1:y", (66,), "B")])
    await worker.publisher.flush(everything=True)
    assert [(write.event.epoch, write.event.seq, write.event.text) for write in worker.queue.written] == [
        ("1:y", 2, "B")
    ]
    assert worker.publisher.has_room(0)


async def test_tokens_of_the_old_row_that_were_not_written_take_no_room() -> None:
    worker = Worker()
    for number in range(5):
        await worker.deliver(f"{number}:x")
        job = worker.jobs.get("a")
        assert job is not None
        worker.publisher.push([Output("a", job.epoch, (66, 67), "BC")])
        worker.publisher._collect()
    worker.publisher.lose("a", "4:x")
    assert worker.publisher.has_room(0)


async def test_an_answer_to_the_old_attempt_does_not_touch_the_new_one() -> None:
    worker = Worker()
    await worker.deliver("1:x")
    worker.publisher.push([Output("a", "1:x", (66,), "B")])
    answer = asyncio.Event()

    async def write(writes: Sequence[Write]) -> list[Written]:
        await answer.wait()
        return [Written(emitted=(Verdict.FENCED, 0)) for _ in writes]

    worker.queue.write = write
    flushing = asyncio.create_task(worker.publisher.flush())
    await asyncio.sleep(0)
    await worker.deliver("1:y", LOGGED)
    answer.set()
    await flushing
    worker.publisher.lose("a", "1:x")  # a renewal's answer that comes late
    assert worker.jobs.epochs == {"a": "1:y"}
    assert worker.engine[-1] == "add a 1:y A"


async def test_where_only_the_log_differs_the_job_is_handed_back() -> None:
    worker = Worker()
    worker.queue.verdict = Verdict.DIFFERS
    await worker.deliver("1:x")
    worker.publisher.push([Output("a", "1:x", (66,), "B")])
    await worker.publisher.flush()
    assert (worker.queue.released, len(worker.jobs), worker.engine[-1]) == ([("a", "1:x")], 0, "abort a")
