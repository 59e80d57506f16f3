"""The health check of a worker's container: the heartbeat that a worker on this host keeps in Redis."""

import re
import socket

import redis

from cli.redis_url import connect, mask_password
from shared.errors import ForebayError, RedisUnavailableError
from shared.keys import QueueKeys, queue_name
from worker.settings import WorkerSettings


def check_worker(settings: WorkerSettings, url: str) -> str:
    """A line about the ready worker of this host. Raises ForebayError if there is none, whatever the reason."""
    keys = QueueKeys(settings.key_prefix, queue_name(settings.model_name))
    host = socket.gethostname()
    pattern = re.sub(r"([\[\]?*\\^])", r"\\\1", keys.worker(f"{host}-")) + "*"
    try:
        with connect(url) as client:
            states = {key: client.hget(key, "status") for key in client.scan_iter(pattern, count=1000)}
    except (redis.RedisError, OSError) as error:
        raise RedisUnavailableError(f"Redis does not answer: {mask_password(str(error))}") from None
    for key, status in states.items():
        if status == "ready":
            return f"{key} is ready"
    seen = ", ".join(f"{key} is {status}" for key, status in states.items()) or "no heartbeat"
    raise ForebayError(f"no worker on {host} is ready for {settings.model_name}: {seen}")
