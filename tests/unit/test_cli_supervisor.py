"""Starting again, giving up and stopping, with small real processes."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.child import Child, Restarts
from cli.process_group import ProcessGroup
from cli.supervisor import Supervisor
from shared.errors import ForebayError
from tests.support.eventually import eventually

READY = "import signal, time; print('ready', flush=True); "
RUN = READY + "time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + RUN


class Harness:
    def __init__(self, group: ProcessGroup) -> None:
        self.lines: list[str] = []
        self.supervisor = Supervisor(group, self.lines.append, lambda: Restarts(max_in_a_row=3, first_delay=0.01))

    def child(self, name: str, program: str) -> Child:
        return Child(name, [sys.executable, "-c", program], env={}, say=self.lines.append)

    async def running(self, name: str, program: str) -> Child:
        child = self.child(name, program)
        self.supervisor.keep(child)
        await eventually(lambda: f"{name} | ready" in self.lines, f"{name} runs")
        return child


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    with ProcessGroup() as group:
        yield Harness(group)


async def test_a_process_that_crashes_is_started_again(harness: Harness, tmp_path: Path) -> None:
    marker = tmp_path / "second"
    program = f"""
import os, pathlib, time
marker = pathlib.Path({str(marker)!r})
if not marker.exists():
    marker.touch()
    os.abort()
print("again", flush=True)
time.sleep(600)
"""
    child = harness.child("worker-1", program)
    harness.supervisor.keep(child)
    await eventually(lambda: "worker-1 | again" in harness.lines, "it runs again")
    assert "worker-1 died (SIGABRT): starting it again in 0.01 s" in harness.lines
    await harness.supervisor.stop([child], 10)


async def test_one_that_keeps_crashing_is_given_up_with_its_last_lines(harness: Harness) -> None:
    harness.supervisor.keep(harness.child("api", "import os; print('about to fail', flush=True); os.abort()"))
    error = await asyncio.wait_for(harness.supervisor.failed, 20)
    assert str(error) == "api died 3 times in a row (SIGABRT); its last lines:\n    about to fail"


async def test_a_user_error_at_the_start_is_final(harness: Harness) -> None:
    harness.supervisor.keep(harness.child("api", "import sys; print('forebay: no such model'); sys.exit(1)"))
    error = await asyncio.wait_for(harness.supervisor.failed, 20)
    assert str(error) == "api could not start: no such model"


async def test_a_program_that_is_not_there_is_final(harness: Harness) -> None:
    harness.supervisor.keep(Child("redis", ["/no/such/program"], env={}, say=print))
    error = await asyncio.wait_for(harness.supervisor.failed, 20)
    assert "redis cannot be started: " in str(error)
    assert "/no/such/program" in str(error)


async def test_the_same_exit_later_is_a_death_like_any_other(harness: Harness) -> None:
    harness.supervisor.started_up = True
    harness.supervisor.keep(harness.child("api", "import sys; sys.exit(1)"))
    error = await asyncio.wait_for(harness.supervisor.failed, 20)
    assert "died 3 times in a row" in str(error)


async def test_a_single_task_that_fails_raises_its_last_line(harness: Harness) -> None:
    fetch = harness.child("model", "import sys; print('forebay: not to be had'); sys.exit(1)")
    with pytest.raises(ForebayError, match=r"model failed \(exit code 1\): not to be had"):
        await harness.supervisor.run_once(fetch)


async def test_stop_asks_first_and_does_not_start_again(harness: Harness) -> None:
    child = await harness.running("worker-1", RUN)
    await harness.supervisor.stop([child], 10)
    assert not child.is_running
    assert not any("died" in line or "at once" in line for line in harness.lines)


async def test_one_that_does_not_stop_in_time_is_killed(harness: Harness) -> None:
    child = await harness.running("worker-1", STUBBORN)
    await harness.supervisor.stop([child], 0.1)
    assert not child.is_running
    assert "worker-1 is ended at once" in harness.lines


async def test_one_that_waits_to_be_started_again_stays_dead(harness: Harness) -> None:
    supervisor = harness.supervisor
    supervisor._restarts = lambda: Restarts(first_delay=600)
    child = await harness.running("worker-1", RUN)
    child.signal(signal.SIGKILL)
    await eventually(lambda: any("starting it again" in line for line in harness.lines), "its death is seen")
    await supervisor.stop([child], 10)
    assert harness.lines.count("worker-1 | ready") == 1


async def test_a_single_task_is_stopped_while_it_runs(harness: Harness) -> None:
    fetch = harness.child("model", RUN)
    running = asyncio.create_task(harness.supervisor.run_once(fetch))
    await eventually(lambda: "model | ready" in harness.lines, "it runs")
    running.cancel()
    await harness.supervisor.stop([fetch], 10)
    assert not fetch.is_running
    with pytest.raises(asyncio.CancelledError):
        await running
