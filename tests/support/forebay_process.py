"""The command `forebay` as a real process."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.eventually import eventually_sync

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-m", "cli"]


def environment(**settings: str) -> dict[str, str]:
    """The environment of a child: that of the tests (without settings) and these settings."""
    return os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"} | settings


def run_forebay(*arguments: str, timeout: float = 30, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that ends by itself."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(**settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class ForebayProcess:
    """A command that goes on, its output read line by line. Leaving the `with` block kills it if it still runs."""

    def __init__(self, *arguments: str, settings: Mapping[str, str], prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, *COMMAND, *arguments],
            env=environment(**settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, *, deadline: float = 30) -> str:
        """The first line that holds `text`; fails with all output if it does not come."""

        def line() -> str | None:
            found = next((line for line in list(self.lines) if text in line), None)
            assert found or self.process.poll() is None or self._reader.is_alive(), self.output
            return found

        return str(eventually_sync(line, f"{text!r} in the output", deadline=deadline))

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        """Its exit code, once all that wrote to its output has ended."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        assert not self._reader.is_alive(), "a process that it started still runs"
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self.lines.append(line.rstrip("\n"))
