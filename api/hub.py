"""One pub/sub connection for all streams of a process, and one bounded buffer per stream. What arrives here is a hint
for speed; whoever was marked stale has missed something and reads the log."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from api.background import BackgroundTasks
from shared.pubsub import Subscriber


class Subscription:
    """Messages of one channel for one reader."""

    def __init__(self, capacity: int) -> None:
        self.is_stale = False  # messages may be missing: read the log
        self.is_closed = False  # nothing comes any more: this process ends, or the context was left
        self._capacity = capacity
        self._messages: deque[str] = deque()
        self._wakeup = asyncio.Event()

    def push(self, message: str) -> None:
        """Buffer a message. On overflow the reader is slow: the log serves it better than a buffer would."""
        if self.is_stale:
            return
        if len(self._messages) >= self._capacity:
            self.mark_stale()
            return
        self._messages.append(message)
        self._wakeup.set()

    def mark_stale(self) -> None:
        """Drop what is buffered; nothing more is buffered until the reader clears `is_stale` to read the log."""
        self._messages.clear()
        self.is_stale = True
        self._wakeup.set()

    def close(self) -> None:
        """Tell the reader that nothing comes any more."""
        self.is_closed = True
        self._wakeup.set()

    async def wait(self, timeout: float) -> bool:
        """True as soon as there is something to look at, False after `timeout` s without."""
        if not self._messages:
            self._wakeup.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._wakeup.wait()
            except TimeoutError:
                return False
        return True

    def take(self) -> Sequence[str]:
        """All buffered messages."""
        messages, self._messages = self._messages, deque()
        return messages


class Hub:
    """Owner of the connection."""

    def __init__(self, url: str, *, buffer: int, tasks: BackgroundTasks) -> None:
        self._buffer = buffer
        self._tasks = tasks
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._subscriber = Subscriber(url, on_message=self._on_message, on_gap=self._on_gap)
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        return self._subscriber.is_connected

    @property
    def num_channels(self) -> int:
        return self._subscriber.num_channels

    async def run(self) -> None:
        """Keep the connection alive until cancelled."""
        await self._subscriber.run()

    def close(self) -> None:
        """Tell all readers that the process ends."""
        self._is_closed = True
        for subscription in self._all():
            subscription.close()

    @asynccontextmanager
    async def subscribe(self, channels: Sequence[str]) -> AsyncIterator[list[Subscription]]:
        """Subscriptions that Redis has confirmed: nothing published from now on is missed unless it marks them stale.
        Raises RedisUnavailableError."""
        subscriptions = [self._register(channel) for channel in channels]
        try:
            await asyncio.gather(*(self._subscriber.subscribe(channel) for channel in channels))
            yield subscriptions
        finally:
            for channel, subscription in zip(channels, subscriptions, strict=True):
                self._release(channel, subscription)

    def _register(self, channel: str) -> Subscription:
        subscription = Subscription(self._buffer)
        self._subscriptions.setdefault(channel, set()).add(subscription)
        if self._is_closed:
            subscription.close()
        return subscription

    def _release(self, channel: str, subscription: Subscription) -> None:
        subscription.close()  # a reader whose cancellation got lost ends too
        readers = self._subscriptions[channel]
        readers.discard(subscription)
        if not readers:
            del self._subscriptions[channel]
            self._tasks.spawn(self._unsubscribe(channel))

    async def _unsubscribe(self, channel: str) -> None:
        if channel not in self._subscriptions:
            await self._subscriber.unsubscribe(channel)

    def _on_message(self, channel: str, payload: str) -> None:
        for subscription in self._subscriptions.get(channel, ()):
            subscription.push(payload)

    def _on_gap(self) -> None:
        for subscription in self._all():
            subscription.mark_stale()

    def _all(self) -> list[Subscription]:
        return [subscription for readers in self._subscriptions.values() for subscription in readers]
