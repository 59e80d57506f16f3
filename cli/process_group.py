"""A group of processes that cannot outlive the one that made it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from cli import guard


class ProcessGroup:
    """Starts the guard. Processes started with `options` are members; all are ended when the maker closes the group
    or dies. They get no Ctrl-C from the terminal: it goes to the maker, who knows the right order."""

    def __init__(self, grace: float = 5.0) -> None:
        lifeline, self._lifeline = os.pipe()
        members, self._members = os.pipe()
        path = str(Path(guard.__file__))
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", path, str(lifeline), str(members), str(grace)],
            stdin=subprocess.DEVNULL,
            pass_fds=(lifeline, members),
            process_group=0,
        )
        os.close(lifeline)
        os.close(members)

    def options(self, *pass_fds: int) -> dict[str, Any]:
        """Arguments for Popen that make the new process a member before it runs its program."""
        return {"process_group": self._guard.pid, "pass_fds": (self._members, *pass_fds)}

    def close(self) -> None:
        """End every member that still runs; returns when none is left. The second call does nothing."""
        if self._guard.returncode is not None:
            return
        for fd in (self._lifeline, self._members):
            os.close(fd)
        self._guard.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
