"""The Redis that the user names: a clear line if it cannot be used, and its password never shown."""

import re

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shared.errors import RedisUnavailableError, SettingsError
from shared.redis import mask_password
from shared.settings import CommonSettings

MIN_VERSION = (7, 0)


def require_url(settings: CommonSettings) -> str:
    """The Redis URL; raises SettingsError if none is set."""
    if not settings.redis_url:
        raise SettingsError(
            "FOREBAY_REDIS_URL is not set, e.g. FOREBAY_REDIS_URL=redis://localhost:6379/0 "
            "(`forebay up` brings its own Redis)"
        )
    return settings.redis_url


def connect(url: str) -> "redis.Redis":
    """A client that gives up within seconds. Raises SettingsError for a malformed URL."""
    try:
        return redis.Redis.from_url(
            url, socket_connect_timeout=2, socket_timeout=2, retry=Retry(NoBackoff(), 0), decode_responses=True
        )
    except ValueError as error:
        raise SettingsError(f"FOREBAY_REDIS_URL={mask_password(url)!r}: {error}") from None


def check_url(url: str) -> None:
    """Raise SettingsError for a malformed URL, RedisUnavailableError for a server that is away or too old."""
    shown = mask_password(url)
    try:
        with connect(url) as client:
            version = str(client.info("server")["redis_version"])
    except (redis.RedisError, OSError) as error:
        raise RedisUnavailableError(f"Redis at {shown} cannot be used: {mask_password(str(error))}") from None
    if parse_version(version) < MIN_VERSION:
        raise RedisUnavailableError(f"Redis at {shown} is version {version}; Forebay needs 7.0 or newer")


def parse_version(text: str) -> tuple[int, ...]:
    """(7, 0, 15) of "7.0.15"; () if there is no version in the text."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in match.groups()) if match else ()
