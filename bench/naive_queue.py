"""What Forebay must not be: a model of the server it grew out of. One model process, one queue of requests, and ONE
queue of results shared by the streaming and the plain caller, each of which takes whatever comes next as its own."""

import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

TOKENS = 8
STEP = 0.001  # s a forward step takes
END = None


def answer(prompt: str) -> list[str]:
    """The known tokens of a prompt."""
    return [f"{prompt}:{number}" for number in range(TOKENS)]


def _model(pipe: Any) -> None:
    while (request := pipe.recv()) is not END:
        prompt, is_streamed = request
        tokens = answer(prompt)
        for result in (*tokens, END) if is_streamed else ("".join(tokens),):
            time.sleep(STEP)
            pipe.send(result)


class NaiveServer:
    """A forked model worker, an engine thread that fetches its results, and two callers."""

    def __init__(self) -> None:
        self._pipe, other = multiprocessing.Pipe()
        self._results: queue.Queue[Any] = queue.Queue()
        self._process = multiprocessing.Process(target=_model, args=(other,), daemon=True)
        self._process.start()
        other.close()
        threading.Thread(target=self._fetch, daemon=True).start()

    def _fetch(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._results.put(self._pipe.recv())

    def generate(self, prompt: str) -> str:
        self._pipe.send((prompt, False))
        return str(self._results.get(timeout=1))

    def stream(self, prompt: str) -> str:
        self._pipe.send((prompt, True))
        text = ""
        while (token := self._results.get(timeout=1)) is not END:
            text += token
        return text

    def close(self) -> None:
        self._pipe.send(END)
        self._process.join()


def mixed_runs(runs: int) -> int:
    """Run a stream and a plain request at once, `runs` times, each on a new server. Returns in how many runs a caller
    got anything but its own answer."""
    return sum(_is_mixed(number) for number in range(runs))


def _is_mixed(number: int) -> bool:
    server, barrier = NaiveServer(), threading.Barrier(2)

    def ask(call: Callable[[str], str], prompt: str) -> bool:
        barrier.wait()
        try:
            return call(prompt) == "".join(answer(prompt))
        except Exception:  # noqa: BLE001 - the other caller took its end: a hang, had it no time-out
            return False

    with ThreadPoolExecutor(2) as pool:
        right = list(pool.map(ask, (server.stream, server.generate), (f"stream {number}", f"plain {number}")))
    server.close()
    return not all(right)
