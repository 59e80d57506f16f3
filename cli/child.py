"""One process that `forebay up` started: its output with a prefix, its end, its restarts."""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.process_group import ProcessGroup

TAIL_LINES = 10
MAX_LINE = 1 << 16  # longer lines are cut into pieces


@dataclass
class Restarts:
    """Decides about a dead process: wait and start it again, or give up. Pure."""

    max_in_a_row: int = 5
    short_life: float = 30.0  # seconds; a process that lived longer has worked, and counting starts again
    first_delay: float = 0.5
    max_delay: float = 10.0
    num_in_a_row: int = field(default=0, init=False)

    def after_death(self, lifetime: float) -> float | None:
        """Seconds to wait before the next start; None: give up."""
        self.num_in_a_row = 1 if lifetime >= self.short_life else self.num_in_a_row + 1
        if self.num_in_a_row >= self.max_in_a_row:
            return None
        return float(min(self.first_delay * 2 ** (self.num_in_a_row - 1), self.max_delay))


class Child:
    """A member of the process group, started as often as `run` is called."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        say: Callable[[str], None],
        pass_fds: Sequence[int] = (),
        log: Path | None = None,
    ) -> None:
        self.name = name
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._log = log  # where it writes, if not to its output
        self._argv, self._env, self._say, self._pass_fds = argv, env, say, pass_fds
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id of its present or last life; 0 before the first."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def last_lines(self) -> list[str]:
        """The end of what it said in its last life."""
        if not self._tail and self._log and self._log.is_file():
            return self._log.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:]
        return list(self._tail)

    async def run(self, group: ProcessGroup) -> tuple[int, float]:
        """Start it and wait for its end: exit code (negative: the signal that ended it) and seconds it lived."""
        self._tail.clear()
        started = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(
            *self._argv,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            **group.options(*self._pass_fds),
        )
        await self._relay_output(self._process)
        return await self._process.wait(), time.monotonic() - started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _relay_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        pending = b""
        while chunk := await process.stdout.read(MAX_LINE):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._relay(line)
            if len(pending) > MAX_LINE:
                self._relay(pending)
                pending = b""
        if pending:
            self._relay(pending)

    def _relay(self, line: bytes) -> None:
        # a progress bar draws itself over and over with carriage returns: its last state is the line
        text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
        self._tail.append(text)
        self._say(f"{self.name} | {text}")


def describe_exit(code: int) -> str:
    """ "exit code 3", or the name of the signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
