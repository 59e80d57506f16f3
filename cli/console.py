"""What `forebay up` prints. A terminal or pipe that is gone is no error; it is a reason to stop."""

import os
import sys
from collections.abc import Callable


class Console:
    """Prints lines to stdout; calls `on_closed` once if nobody can read them any more."""

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._on_closed = on_closed
        self._closed = False

    def say(self, line: str) -> None:
        if self._closed:
            return
        try:
            print(line, flush=True)
        except OSError:
            self._closed = True
            # what is still buffered must not fail again when Python flushes it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._on_closed()
