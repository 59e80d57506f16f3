"""A child of `forebay up`: its output, its restarts, and that it cannot outlive the one that started it."""

import signal
import subprocess
import sys

import psutil
import pytest

from cli.child import Child, Restarts, describe_exit
from cli.process_group import ProcessGroup
from tests.support.eventually import eventually_sync
from tests.support.forebay_process import environment

MAKER = """
import subprocess, sys, time
from cli.process_group import ProcessGroup
group = ProcessGroup(grace=0.1)
member = subprocess.Popen([sys.executable, "-c", sys.argv[1]], **group.options())
print(member.pid, flush=True)
time.sleep(600)
"""
SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


def is_alive(process: psutil.Process) -> bool:
    """False for a zombie that waits for its new parent as well."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def output_of(program: str) -> tuple[list[str], Child, int]:
    lines: list[str] = []
    child = Child("worker-1", [sys.executable, "-c", program], env={}, say=lines.append)
    with ProcessGroup() as group:
        code, _ = await child.run(group)
    return lines, child, code


async def test_lines_carry_the_name_of_the_process() -> None:
    lines, child, code = await output_of("import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)")
    assert sorted(lines) == ["worker-1 | one", "worker-1 | two"]
    assert sorted(child.last_lines()) == ["one", "two"]
    assert code == 3


async def test_a_progress_bar_becomes_one_line() -> None:
    lines, _, _ = await output_of(r"import sys; sys.stdout.write('10%\r50%\r100%\nrest')")
    assert lines == ["worker-1 | 100%", "worker-1 | rest"]


async def test_a_line_without_end_is_cut_not_collected() -> None:
    lines, _, _ = await output_of("import sys; sys.stdout.write('x' * 300_000)")
    assert len(lines) > 1
    assert sum(line.count("x") for line in lines) == 300_000


def test_a_process_that_keeps_dying_is_given_up() -> None:
    restarts = Restarts()
    assert [restarts.after_death(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 4.0, None]


def test_a_process_that_has_worked_starts_counting_again() -> None:
    restarts = Restarts()
    for _ in range(4):
        restarts.after_death(1.0)
    assert restarts.after_death(31.0) == 0.5
    assert restarts.after_death(1.0) == 1.0


def test_the_delay_between_restarts_is_bounded() -> None:
    restarts = Restarts(max_in_a_row=50)
    assert max(restarts.after_death(0.0) or 0 for _ in range(40)) == 10.0


@pytest.mark.parametrize(("code", "text"), [(1, "exit code 1"), (-9, "SIGKILL"), (-200, "signal 200")])
def test_an_end_is_described(code: int, text: str) -> None:
    assert describe_exit(code) == text


@pytest.mark.parametrize("program", [SLEEPER, STUBBORN])
def test_members_die_with_their_maker_even_if_that_is_killed(program: str) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-P", "-c", MAKER, program], env=environment(), stdout=subprocess.PIPE, text=True
    )
    with maker:
        assert maker.stdout is not None
        member = psutil.Process(int(maker.stdout.readline()))
        assert maker.stdout.readline() == "ready\n"
        family = [member, *psutil.Process(maker.pid).children()]
        maker.send_signal(signal.SIGKILL)
    eventually_sync(lambda: not any(is_alive(process) for process in family), "all processes are gone")


def test_closing_a_group_ends_what_still_runs_and_may_be_repeated() -> None:
    group = ProcessGroup()
    member = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL, **group.options())
    group.close()
    group.close()
    assert member.wait(10) == -signal.SIGTERM
