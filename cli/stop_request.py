"""What makes `forebay up` stop: a signal, a closed terminal, a dead parent, a reader of its output that is gone."""

import asyncio
import os
import signal

PARENT_INTERVAL = 0.5  # seconds between looks at the parent


class StopRequest:
    """`stop` is set by the first request, `at_once` by a Ctrl-C after it. SIGTERM may come twice (make passes on what
    the whole process group got already), so only Ctrl-C hurries. With `nohup` the parent and the terminal may go."""

    def __init__(self) -> None:
        self.stop, self.at_once = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._outlives_parent = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._loop.add_signal_handler(signal.SIGINT, self._interrupted)
        self._loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        if not self._outlives_parent:
            self._loop.add_signal_handler(signal.SIGHUP, self.stop.set)

    def _interrupted(self) -> None:
        (self.at_once if self.stop.is_set() else self.stop).set()

    async def watch_parent(self) -> None:
        """Set `stop` when the parent process is gone."""
        parent = os.getppid()
        while not self._outlives_parent and not self.stop.is_set():
            if os.getppid() != parent:
                self.stop.set()
            await asyncio.sleep(PARENT_INTERVAL)
