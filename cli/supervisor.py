"""Keeps the processes of `forebay up` running, and stops them in order."""

import asyncio
import signal
from collections.abc import Callable, Iterable
from typing import Any

from cli.child import Child, Restarts, describe_exit
from cli.process_group import ProcessGroup
from shared.errors import ForebayError

USER_ERRORS = (1, 2)  # exit codes of a process that has said in one line what is wrong


class Supervisor:
    """Starts children and starts them again when they die. `failed` completes when it gives one up."""

    def __init__(
        self,
        group: ProcessGroup,
        say: Callable[[str], None],
        restarts: Callable[[], Restarts] = Restarts,
    ) -> None:
        self.started_up = False  # set once everything was ready: a user error no longer ends all
        self.failed: asyncio.Future[ForebayError] = asyncio.get_running_loop().create_future()
        self._group, self._say, self._restarts = group, say, restarts
        self._keepers: dict[Child, asyncio.Task[Any]] = {}
        self._stopping: set[Child] = set()

    def keep(self, child: Child) -> None:
        """Start a child and keep it running until it is stopped."""
        self._keepers[child] = asyncio.create_task(self._keep(child))

    async def run_once(self, child: Child) -> None:
        """Run a child that does one thing. Raises ForebayError if it fails."""
        task = self._keepers[child] = asyncio.create_task(child.run(self._group))
        code, _ = await asyncio.shield(task)  # when this is cancelled, `stop` still waits for the process
        if code != 0:
            raise ForebayError(f"{child.name} failed ({describe_exit(code)}): {_last_line(child)}")

    async def stop(self, children: Iterable[Child], timeout: float) -> None:
        """Ask children to end, and make them after `timeout` seconds. Returns when they have ended."""
        leaving = [child for child in children if child in self._keepers]
        self._stopping.update(leaving)
        for child in leaving:
            child.signal(signal.SIGTERM)
            if not child.is_running:  # waiting to be started again
                self._keepers[child].cancel()
        tasks = [self._keepers[child] for child in leaving]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=timeout)
        self.kill(child for child in leaving if self._keepers[child] in late)
        await asyncio.gather(*tasks, return_exceptions=True)

    def kill(self, children: Iterable[Child]) -> None:
        """End children at once."""
        for child in list(children):
            self._stopping.add(child)
            if child.is_running:
                self._say(f"{child.name} is ended at once")
            child.signal(signal.SIGKILL)

    async def _keep(self, child: Child) -> None:
        restarts = self._restarts()
        while True:
            try:
                code, lifetime = await child.run(self._group)
            except OSError as error:
                return self._give_up(f"{child.name} cannot be started: {error}")
            if child in self._stopping:
                return
            delay = restarts.after_death(lifetime)
            if code in USER_ERRORS and not self.started_up:
                return self._give_up(f"{child.name} could not start: {_last_line(child)}")
            if delay is None:
                return self._give_up(_too_often(child, restarts, code))
            self._say(f"{child.name} died ({describe_exit(code)}): starting it again in {delay:g} s")
            await asyncio.sleep(delay)

    def _give_up(self, message: str) -> None:
        if not self.failed.done():
            self.failed.set_result(ForebayError(message))


def _last_line(child: Child) -> str:
    lines = child.last_lines()
    return lines[-1].removeprefix("forebay: ") if lines else "it said nothing"


def _too_often(child: Child, restarts: Restarts, code: int) -> str:
    head = f"{child.name} died {restarts.num_in_a_row} times in a row ({describe_exit(code)}); its last lines:"
    return "\n".join([head, *(f"    {line}" for line in child.last_lines())])
