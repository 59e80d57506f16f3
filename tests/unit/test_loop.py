"""The engine loop over the fake engine, in its own thread."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.eventually import eventually_sync
from tests.support.jobs import chain_text, fake_job, script
from worker.detokenizer import Vocabulary
from worker.engines.fake import FakeEngine
from worker.loop import Abort, Add, EngineLoop
from worker.sequence import Output
from worker.sequence import Sequence as Row


class Harness:
    """A loop, what it published, and whether it may go on."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.outputs: list[Output] = []
        self.room = threading.Event()
        self.room.set()
        self.vocabulary = Vocabulary(engine.info.tokenizer_json)
        self.loop = EngineLoop(engine, publish=self.publish, has_room=self.room.wait)

    def publish(self, outputs: Sequence[Output]) -> None:
        self.outputs += outputs

    def add(self, job_id: str, prompt: str, **params: object) -> None:
        request = fake_job(job_id, prompt, **params)
        eos = self.engine.info.eos_token_ids
        self.loop.submit(Add(Row(request, "1:x", vocabulary=self.vocabulary, eos_token_ids=eos)))

    def of(self, job_id: str) -> list[Output]:
        return [output for output in self.outputs if output.id == job_id]

    def ended(self, *job_ids: str) -> None:
        for job_id in job_ids:
            eventually_sync(lambda job_id=job_id: any(o.is_last for o in self.of(job_id)), f"row {job_id} ends")


@contextmanager
def running(engine: FakeEngine) -> Iterator[Harness]:
    harness = Harness(engine)
    thread = threading.Thread(target=harness.loop.run)
    thread.start()
    try:
        yield harness
    finally:
        harness.loop.stop()
        thread.join(10)
        assert not thread.is_alive()


def text(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


def test_rows_beyond_the_slots_wait_and_all_end() -> None:
    with running(FakeEngine(max_num_seqs=2)) as harness:
        for number in range(7):
            harness.add(f"r{number}", f"prompt {number}", max_tokens=5)
        harness.ended(*(f"r{number}" for number in range(7)))
    for number in range(7):
        assert text(harness.of(f"r{number}")) == chain_text(f"prompt {number}", 5)
        assert sum(output.is_last for output in harness.of(f"r{number}")) == 1
    assert harness.engine.num_running == 0


def test_a_finished_row_does_not_wait_for_the_slowest() -> None:
    with running(FakeEngine(max_num_seqs=2)) as harness:
        harness.add("long", script(["x" * 400], delay_ms=1), max_tokens=400)
        harness.add("short", script(["ab"]), max_tokens=2)
        harness.add("next", script(["cd"]), max_tokens=2)
        harness.ended("short", "next")
        assert not any(output.is_last for output in harness.of("long"))


def test_a_failing_row_fails_alone() -> None:
    with running(FakeEngine()) as harness:
        harness.add("good", script(["abcdef"], delay_ms=1))
        harness.add("bad", script(["abcdef"], fail_at=3))
        harness.ended("good", "bad")
    assert text(harness.of("good")) == "abcdef"
    assert text(harness.of("bad")) == "ab"
    assert "scripted failure" in harness.of("bad")[-1].error


def test_a_row_that_fails_the_whole_forward_is_found() -> None:
    with running(FakeEngine()) as harness:
        harness.add("one", script(["abcdefgh"], delay_ms=5))
        harness.add("bad", script(["abcdef"], fail_step_at=3))
        harness.add("two", script(["stuvwxyz"]))
        harness.ended("one", "bad", "two")
    assert (text(harness.of("one")), text(harness.of("two"))) == ("abcdefgh", "stuvwxyz")
    assert text(harness.of("bad")) == "ab"
    assert harness.of("bad")[-1].error


def test_a_row_that_the_engine_refuses_fails_alone() -> None:
    with running(FakeEngine()) as harness:
        harness.add("bad", '{"script": 5}')
        harness.add("good", "hello", max_tokens=3)
        harness.ended("bad", "good")
    assert harness.of("bad")[-1].error
    assert text(harness.of("good")) == chain_text("hello", 3)


def test_an_aborted_row_leaves_its_slot() -> None:
    with running(FakeEngine(max_num_seqs=1)) as harness:
        harness.add("long", script(["x" * 5000], delay_ms=1), max_tokens=5000)
        harness.add("waiting", "w", max_tokens=3)
        harness.add("next", "n", max_tokens=3)
        eventually_sync(lambda: harness.of("long"), "the long row runs")
        harness.loop.submit(Abort("waiting"))
        harness.loop.submit(Abort("long"))
        harness.loop.submit(Abort("unknown"))
        harness.ended("next")
    assert not harness.of("waiting")


def test_the_engine_pauses_while_there_is_no_room() -> None:
    with running(FakeEngine()) as harness:
        harness.room.clear()
        harness.add("a", "hello", max_tokens=3)
        moved = harness.loop.moved_at
        eventually_sync(lambda: harness.loop.moved_at > moved, "the loop comes round")
        assert not harness.outputs
        harness.room.set()
        harness.ended("a")
