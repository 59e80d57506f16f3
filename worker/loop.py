"""The engine thread: it steps the model and nothing else. Commands come in and outputs go out through thread-safe
queues, so the model never waits for Redis."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.engines.base import Engine, StepOutput
from worker.sequence import Output
from worker.sequence import Sequence as Row

logger = logging.getLogger(__name__)

IDLE_WAIT = 0.2  # s; bounds how late an idle engine thread sees that it should end
FAILED = "the engine failed on this request: "


@dataclass(frozen=True, slots=True)
class Add:
    """Run a new row."""

    row: Row


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop a row; unknown ids are ignored."""

    id: str


class EngineLoop:
    """Runs an engine until stopped. `publish` takes what the rows gained in a step; `has_room(timeout)` says, within
    `timeout` s, whether more of it can be taken."""

    def __init__(
        self, engine: Engine, *, publish: Callable[[Sequence[Output]], None], has_room: Callable[[float], bool]
    ) -> None:
        self._engine = engine
        self._publish = publish
        self._has_room = has_room
        self._inbox: queue.SimpleQueue[Add | Abort | None] = queue.SimpleQueue()
        self._waiting: deque[Row] = deque()
        self._rows: dict[str, Row] = {}
        self._stopping = threading.Event()
        self.num_steps = 0
        self.num_tokens = 0
        self.moved_at = time.monotonic()  # when the loop last came round: what a heartbeat proves

    def submit(self, command: Add | Abort) -> None:
        """From any thread."""
        self._inbox.put(command)

    def stop(self) -> None:
        """End `run` after the current step. From any thread."""
        self._stopping.set()
        self._inbox.put(None)

    def run(self) -> None:
        """Step until `stop`."""
        while not self._stopping.is_set():
            self._receive()
            self.moved_at = time.monotonic()
            if self._has_room(IDLE_WAIT):
                self._admit()
                self._step()

    def _receive(self) -> None:
        """Carry out all commands that have come; wait for one only if there is nothing to run."""
        is_idle = not self._rows and not self._waiting
        try:
            command = self._inbox.get(block=is_idle, timeout=IDLE_WAIT)
            while True:
                self._execute(command)
                command = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _execute(self, command: Add | Abort | None) -> None:
        if isinstance(command, Add):
            self._waiting.append(command.row)
        elif isinstance(command, Abort):
            self._waiting = deque(row for row in self._waiting if row.id != command.id)
            self._drop(command.id)

    def _admit(self) -> None:
        while self._waiting and self._engine.can_add(self._waiting[0].engine_request()):
            self._add(self._waiting.popleft())

    def _add(self, row: Row) -> None:
        if row.finish_reason:  # an earlier attempt made the last token but could not say so
            self._publish([Output(row.id, row.epoch, finish_reason=row.finish_reason)])
            return
        try:
            self._engine.add(row.engine_request())
        except Exception as error:  # noqa: BLE001 - whatever a row does to the engine, it fails alone
            self._publish([row.fail(FAILED + _describe(error))])
        else:
            self._rows[row.id] = row

    def _step(self) -> None:
        if not self._rows:
            return
        try:
            outputs = self._engine.step()
        except Exception as error:  # the forward as a whole failed: one of the rows did it
            logger.exception("a forward step of %d rows failed; running them one by one", len(self._rows))
            self._run_one_by_one(error)
        else:
            self._collect(outputs)
        self.num_steps += 1

    def _collect(self, outputs: Sequence[StepOutput]) -> None:
        results = [self._advance(output) for output in outputs if output.id in self._rows]
        if results:
            self._publish(results)

    def _advance(self, output: StepOutput) -> Output:
        row = self._rows[output.id]
        result = row.fail(FAILED + output.error) if output.error else row.append(output.token_ids)
        self.num_tokens += len(result.token_ids)
        if result.is_last:
            self._drop(row.id)
        return result

    def _drop(self, row_id: str) -> None:
        if self._rows.pop(row_id, None) is not None:
            self._engine.abort(row_id)

    def _run_one_by_one(self, error: Exception) -> None:
        """Find the row that makes the forward fail: take all out, and give each a turn alone up to its next token."""
        suspects = list(self._rows.values())
        for row in suspects:
            self._drop(row.id)
        survivors = [row for row in suspects if self._survives_alone(row)]
        self._waiting.extendleft(reversed(survivors))
        if len(survivors) == len(suspects):
            logger.warning("no single row made the step fail; going on (%s)", _describe(error))

    def _survives_alone(self, row: Row) -> bool:
        """Run one row up to its next token; False if it failed or finished. The engine is empty before and after."""
        self._add(row)
        try:
            outputs: list[StepOutput] = []
            while row.id in self._rows and not outputs:
                self.moved_at = time.monotonic()
                outputs = self._engine.step()
        except Exception as error:  # noqa: BLE001 - this is the one
            self._drop(row.id)
            self._publish([row.fail(FAILED + _describe(error))])
            return False
        self._collect(outputs)
        is_alive = row.id in self._rows
        self._drop(row.id)
        return is_alive


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
