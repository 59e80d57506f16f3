"""Stop strings over streamed text: no part of a stop is ever sent, and nothing else is held longer than it must be."""

from collections.abc import Sequence


class StopChecker:
    """The stops of one row. Of several, the one that is complete first ends the text; how the text was cut into
    pieces makes no difference."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that can be sent now, and whether a stop was found (then it is all there is)."""
        if not self._stops:
            return text, False
        text = self._held + text
        start = self._first_match(text)
        if start is not None:
            self._held = ""
            return text[:start], True
        length = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - length :]
        return text[: len(text) - length], False

    def flush(self) -> str:
        """What was held in case it became a stop, when the text ends otherwise."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> int | None:
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1] if found else None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins, `stop` itself excepted."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
