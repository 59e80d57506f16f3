"""Errors and their HTTP form."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from api.errors import error_response, to_api_error
from shared.errors import (
    InvalidRequestError,
    JobNotFoundError,
    ModelError,
    QueueFullError,
    RedisUnavailableError,
)


@pytest.mark.parametrize(
    ("error", "status", "code", "retries"),
    [
        (InvalidRequestError("wrong", "field"), 400, "invalid_request", False),
        (JobNotFoundError("x"), 404, "job_not_found", False),
        (QueueFullError(5, 5), 429, "queue_full", True),
        (ModelError("no tokenizer"), 503, "model_unavailable", True),
        (RedisUnavailableError("away"), 503, "redis_unavailable", True),
        (RedisConnectionError("secret address"), 503, "redis_unavailable", True),
        (OutOfMemoryError("OOM"), 503, "redis_unavailable", True),
        (ZeroDivisionError("a bug"), 500, "internal_error", False),
    ],
)
def test_each_error_has_its_status_and_code(error: Exception, status: int, code: str, retries: bool) -> None:
    response = error_response(to_api_error(error))
    assert response.status_code == status
    assert f'"code":"{code}"' in bytes(response.body).decode()
    assert ("retry-after" in response.headers) is retries
    assert "secret" not in bytes(response.body).decode()
    assert "a bug" not in bytes(response.body).decode()
