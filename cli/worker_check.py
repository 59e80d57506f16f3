"""Looks for workers that are ready, by the heartbeats that they keep in Redis."""

import socket

import redis

from cli.redis_url import connect
from shared.errors import ForebayError, RedisUnavailableError
from shared.keys import QueueKeys, queue_name
from shared.redis import mask_password
from worker.settings import WorkerSettings


def check_worker(settings: WorkerSettings, url: str) -> str:
    """The health check of a worker's container: a line about the ready worker of this host.

    Raises ForebayError if there is none, whatever the reason.
    """
    states = worker_states(settings, url)
    for pid, status in states.items():
        if status == "ready":
            return f"worker {pid} is ready"
    seen = ", ".join(f"worker {pid} is {status}" for pid, status in states.items()) or "no heartbeat"
    raise ForebayError(f"no worker on {socket.gethostname()} is ready for {settings.model_name}: {seen}")


def worker_states(settings: WorkerSettings, url: str) -> dict[int, str]:
    """The status of every worker on this host that is alive and serves the model, by process id."""
    keys = QueueKeys(settings.key_prefix, queue_name(settings.model_name))
    pattern = keys.workers_pattern(f"{socket.gethostname()}-")
    try:
        with connect(url) as client:
            found = [client.hmget(key, ["pid", "status"]) for key in client.scan_iter(pattern, count=1000)]
    except (redis.RedisError, OSError) as error:
        raise RedisUnavailableError(f"Redis does not answer: {mask_password(str(error))}") from None
    return {int(pid): str(status) for pid, status in found if pid}
