"""`forebay worker --check`: the health check of a worker's container, against a real Redis."""

import os
import socket

import pytest

from cli.ports import free_port
from cli.worker_check import check_worker, worker_states
from shared.errors import ForebayError, RedisUnavailableError
from shared.keys import QueueKeys, queue_name
from tests.support.redis_server import RedisServer
from worker.settings import WorkerSettings

SETTINGS = WorkerSettings(model="org/[odd]*model")
HOST = socket.gethostname()


def beat(server: RedisServer, worker_id: str, status: str, *, model: str = SETTINGS.model) -> None:
    key = QueueKeys("forebay", queue_name(model)).worker(worker_id)
    with server.client() as client:
        client.hset(key, mapping={"status": status, "pid": os.getpid()})
        client.expire(key, 60)


@pytest.mark.usefixtures("redis_url")
def test_a_ready_worker_of_this_host_is_found(redis_server: RedisServer) -> None:
    beat(redis_server, f"{HOST}-1-aa", "ready")
    assert check_worker(SETTINGS, redis_server.url) == f"worker {os.getpid()} is ready"


@pytest.mark.parametrize("status", ["loading", "draining"])
@pytest.mark.usefixtures("redis_url")
def test_a_worker_that_is_not_ready_is_named(redis_server: RedisServer, status: str) -> None:
    beat(redis_server, f"{HOST}-1-aa", status)
    with pytest.raises(ForebayError, match=rf"worker {os.getpid()} is {status}"):
        check_worker(SETTINGS, redis_server.url)


@pytest.mark.usefixtures("redis_url")
def test_workers_of_other_hosts_and_models_do_not_count(redis_server: RedisServer) -> None:
    beat(redis_server, "elsewhere-1-aa", "ready")
    beat(redis_server, f"{HOST}-1-aa", "ready", model="org/ominous-model")
    assert worker_states(SETTINGS, redis_server.url) == {}
    with pytest.raises(ForebayError, match="no heartbeat"):
        check_worker(SETTINGS, redis_server.url)


def test_a_redis_that_is_away_is_no_healthy_worker() -> None:
    with pytest.raises(RedisUnavailableError, match="Redis does not answer"):
        check_worker(SETTINGS, f"redis://127.0.0.1:{free_port()}/0")
