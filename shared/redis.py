"""How Forebay connects to Redis. Every time-out and every retry is chosen here, on purpose."""

from redis.asyncio import Redis
from redis.asyncio.connection import Connection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import SettingsError

COMMAND_TIMEOUT = 5.0  # s; no command here blocks, so a longer silence is a fault
CONNECT_TIMEOUT = 2.0  # s
MAX_CONNECTIONS = 64


def connect(url: str, *, retries: int = 0) -> Redis:
    """A client that returns text. `retries` repeats a command after a lost connection: safe only for commands that
    may run twice (all of Forebay's scripts but `take`). Raises SettingsError if the URL is malformed."""
    try:
        pool = ConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            decode_responses=True,
            socket_timeout=COMMAND_TIMEOUT,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_keepalive=True,
            retry=Retry(ConstantBackoff(0.05), retries),
            retry_on_error=[RedisConnectionError, RedisTimeoutError],
        )
    except ValueError as error:
        raise SettingsError(f"FOREBAY_REDIS_URL={url!r}: {error}") from None
    return Redis(connection_pool=pool)


def subscriber_connection(url: str) -> Connection:
    """A bare connection for pub/sub. redis-py's PubSub reconnects silently and loses messages without a word; with a
    bare connection a loss is an exception. RESP2, in which messages are ordinary replies."""
    pool = ConnectionPool.from_url(
        url,
        decode_responses=True,
        protocol=2,
        socket_timeout=COMMAND_TIMEOUT,
        socket_connect_timeout=CONNECT_TIMEOUT,
        socket_keepalive=True,
        retry=Retry(ConstantBackoff(0), 0),
    )
    connection: Connection = pool.make_connection()  # type: ignore[no-untyped-call]
    return connection


def describe(error: RedisError | OSError) -> str:
    """One line about a Redis error, for logs and messages."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
