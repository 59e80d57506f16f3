"""One pub/sub connection for many channels, owned by one task. A message is a hint: whoever needs certainty reads the
log again whenever `on_gap` says that messages may have been lost."""

import asyncio
import logging
from collections.abc import Callable

from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import RedisUnavailableError
from shared.redis import describe, subscriber_connection

logger = logging.getLogger(__name__)

PING_INTERVAL = 5.0  # s of silence after which the connection is tried; as long again, and it counts as dead
RECONNECT_DELAYS = (0.05, 0.1, 0.2, 0.5)  # s; the last one repeats
CONFIRM_TIMEOUT = 5.0  # s


class Subscriber:
    """Keeps its channels subscribed over reconnects."""

    def __init__(self, url: str, *, on_message: Callable[[str, str], None], on_gap: Callable[[], None]) -> None:
        self._url = url
        self._on_message = on_message
        self._on_gap = on_gap
        self._channels: dict[str, asyncio.Future[None]] = {}
        self._connection: Connection | None = None
        self._sending = asyncio.Lock()
        self._failures = 0
        self._resubscribing: set[str] = set()  # channels of this connection that Redis has not yet confirmed

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def num_channels(self) -> int:
        return len(self._channels)

    def add(self, channel: str) -> None:
        """Subscribe with the next connection, without waiting; for use before `run`."""
        self._channels.setdefault(channel, asyncio.get_running_loop().create_future())

    async def subscribe(self, channel: str) -> None:
        """Return when Redis has confirmed: nothing published from now on is missed while the connection lives.
        Raises RedisUnavailableError after CONFIRM_TIMEOUT."""
        confirmed = self._channels.setdefault(channel, asyncio.get_running_loop().create_future())
        await self._send("SUBSCRIBE", channel)
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT):
                await asyncio.shield(confirmed)
        except TimeoutError:
            raise RedisUnavailableError("Redis did not confirm a subscription") from None

    async def unsubscribe(self, channel: str) -> None:
        """Forget a channel; unknown ones are ignored."""
        confirmed = self._channels.pop(channel, None)
        if confirmed is not None:
            confirmed.cancel()
            await self._send("UNSUBSCRIBE", channel)

    async def run(self) -> None:
        """Own the connection until cancelled."""
        while True:
            try:
                await self._serve()
            except (RedisError, OSError) as error:
                await self._pause(error)
            finally:
                self._connection = None

    async def _serve(self) -> None:
        connection = subscriber_connection(self._url)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            self._resubscribing = set(self._channels)
            if self._channels:
                await self._write(connection, "SUBSCRIBE", *self._channels)
            else:
                self._on_gap()
            self._connection = connection
            await self._read(connection)
        finally:
            await connection.disconnect(nowait=True)

    async def _read(self, connection: Connection) -> None:
        is_quiet = False
        while True:
            reply = await connection.read_response(timeout=PING_INTERVAL)
            if reply is not None:
                is_quiet = False
                self._failures = 0
                self._dispatch(reply)
            elif is_quiet:
                raise RedisTimeoutError("the subscription connection is silent")
            else:
                is_quiet = True
                await self._write(connection, "PING")

    def _dispatch(self, reply: list[str]) -> None:
        kind, channel, payload = (*reply, "")[:3]
        if kind == "message":
            self._on_message(channel, payload)
        elif kind == "subscribe":
            self._confirm(channel)

    def _confirm(self, channel: str) -> None:
        confirmed = self._channels.get(channel)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(None)
        if channel in self._resubscribing:
            self._resubscribing.discard(channel)
            if not self._resubscribing:  # from here on nothing is missed; what was published before may be
                self._on_gap()

    async def _send(self, *command: str) -> None:
        """Best effort: a connection that fails here is noticed by its reader, and `run` subscribes anew."""
        connection = self._connection
        if connection is not None:
            try:
                await self._write(connection, *command)
            except (RedisError, OSError) as error:
                logger.debug("pub/sub: %s failed: %s", command[0], describe(error))

    async def _write(self, connection: Connection, *command: str) -> None:
        """Raises RedisError if the connection is lost. redis-py alone would connect it again, with nobody to read from
        it."""
        async with self._sending:
            if not connection.is_connected:
                raise RedisConnectionError("the subscription connection is lost")
            await connection.send_packed_command(connection.pack_command(*command), check_health=False)

    async def _pause(self, error: RedisError | OSError) -> None:
        if self._failures == 0:
            logger.warning("pub/sub connection lost, reconnecting: %s", describe(error))
        delay = RECONNECT_DELAYS[min(self._failures, len(RECONNECT_DELAYS) - 1)]
        self._failures += 1
        await asyncio.sleep(delay)
