"""How Forebay connects to Redis. Every time-out and every retry is chosen here, on purpose."""

import re
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool, Connection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import SettingsError

COMMAND_TIMEOUT = 5.0  # s; no command here blocks, so a longer silence is a fault
CONNECT_TIMEOUT = 2.0  # s
MAX_CONNECTIONS = 64

_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):[^/\s]*@")
_PASSWORD_OPTION = re.compile(r"([?&]password=)[^&\s]*")

PASSING = (NoScriptError, OutOfMemoryError, ReadOnlyError)


class _TellsOfLoss(AbstractConnection):
    """redis-py lets other errors through than its own if a connection is lost while it is written to: uvloop's
    RuntimeError for a transport that is closed, and an AttributeError where a reader has just taken the writer away."""

    async def _send_packed_command(self, command: Iterable[bytes]) -> None:
        try:
            await super()._send_packed_command(command)
        except (RuntimeError, AttributeError) as error:
            raise ConnectionResetError(str(error)) from error


def _telling_of_loss(kind: type[Any]) -> type[Any]:
    """The same kind of connection (TCP, TLS or Unix socket), which reports every loss as redis-py's ConnectionError."""
    return type(kind.__name__, (_TellsOfLoss, kind), {})


def _keepalive(url: str) -> dict[str, bool]:
    """TCP keep-alive, which a Unix socket does not know."""
    return {} if url.startswith("unix:") else {"socket_keepalive": True}


def connect(url: str, *, retries: int = 0, retry_on_timeout: bool = True) -> Redis:
    """A client that returns text. `retries` repeats a command after a lost connection: safe only for commands that
    may run twice (all of Forebay's scripts but `take`). `retry_on_timeout` false: a Redis that hangs is not asked
    twice, for callers that somebody waits for. Raises SettingsError if the URL is malformed."""
    errors = (RedisConnectionError, RedisTimeoutError) if retry_on_timeout else (RedisConnectionError,)
    try:
        # Blocking: many requests at once wait for a connection instead of failing with MaxConnectionsError.
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=COMMAND_TIMEOUT,
            decode_responses=True,
            socket_timeout=COMMAND_TIMEOUT,
            socket_connect_timeout=CONNECT_TIMEOUT,
            **_keepalive(url),
            retry=Retry(ConstantBackoff(0.05), retries, supported_errors=errors),
        )
    except ValueError as error:
        raise SettingsError(f"FOREBAY_REDIS_URL={mask_password(url)!r}: {error}") from None
    pool.connection_class = _telling_of_loss(pool.connection_class)
    return Redis.from_pool(pool)  # owns the pool: aclose() closes its connections too


def subscriber_connection(url: str) -> Connection:
    """A bare connection for pub/sub. redis-py's PubSub reconnects silently and loses messages without a word; with a
    bare connection a loss is an exception. RESP2, in which messages are ordinary replies."""
    pool = ConnectionPool.from_url(
        url,
        decode_responses=True,
        protocol=2,
        socket_timeout=COMMAND_TIMEOUT,
        socket_connect_timeout=CONNECT_TIMEOUT,
        **_keepalive(url),
        retry=Retry(ConstantBackoff(0), 0),
    )
    pool.connection_class = _telling_of_loss(pool.connection_class)
    connection: Connection = pool.make_connection()  # type: ignore[no-untyped-call]
    return connection


def mask_password(text: str) -> str:
    """`text` with the password of every URL in it replaced by ***."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def is_passing(error: Exception) -> bool:
    """Whether it is the server's state, so that the same command may succeed later; otherwise the command is wrong."""
    states = ("OOM", "READONLY", "LOADING", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOSCRIPT")
    return not isinstance(error, ResponseError) or isinstance(error, PASSING) or str(error).startswith(states)


def describe(error: RedisError | OSError) -> str:
    """One line about a Redis error, for logs and messages."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
