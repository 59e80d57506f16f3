"""Listens for hints on the control channel. A lost hint costs a poll interval, or is seen at the next emit."""

from collections.abc import Callable

from shared.keys import QueueKeys
from shared.pubsub import Subscriber


class Control:
    """Calls `wake` when jobs were queued and `cancel(job id)` when one was cancelled."""

    def __init__(self, url: str, keys: QueueKeys, *, wake: Callable[[], None], cancel: Callable[[str], None]) -> None:
        self._channel = keys.control
        self._wake = wake
        self._cancel = cancel
        self._subscriber = Subscriber(url, on_message=self._on_message, on_gap=wake)

    async def run(self) -> None:
        """Listen until cancelled."""
        self._subscriber.add(self._channel)
        await self._subscriber.run()

    def _on_message(self, channel: str, message: str) -> None:
        command, _, job_id = message.partition(" ")
        if command == "wake":
            self._wake()
        elif command == "cancel":
            self._cancel(job_id)
