"""Every error of the HTTP side as one JSON shape: {"error": {"message", "type", "param", "code"}}."""

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from shared.errors import (
    ForebayError,
    InvalidRequestError,
    JobNotFoundError,
    ModelError,
    QueueFullError,
    RedisUnavailableError,
)
from shared.redis import describe

logger = logging.getLogger(__name__)

RETRY_FULL = 1  # s: a full queue moves quickly
RETRY_AWAY = 5  # s: a worker or Redis needs some time to come back
CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody receives it
MAX_PARAM = 100  # characters of a field name that are sent back


class ApiError(ForebayError):
    """An error with its HTTP form."""

    def __init__(
        self, message: str, *, status: int, code: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @classmethod
    def unavailable(cls, message: str, code: str) -> "ApiError":
        """503: the same request may succeed soon."""
        return cls(message, status=503, code=code, retry_after=RETRY_AWAY)


class ClientGoneError(ForebayError):
    """The client hung up before its answer was complete."""


def error_type(status: int) -> str:
    """The class of an error, for clients that know OpenAI's."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"


def error_object(message: str, *, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    """What stands under "error" in a body or an SSE frame."""
    return {"message": message, "type": error_type(status), "param": param, "code": code}


def first_problem(error: ValidationError | RequestValidationError, skip: int = 0) -> InvalidRequestError:
    """What is wrong with a body, in one line; `skip` drops the first parts of a location ("path", "query")."""
    item = error.errors()[0]
    location = [str(part)[:MAX_PARAM] for part in item["loc"][skip:]]
    message = _MESSAGES.get(item["type"], item["msg"])
    return InvalidRequestError(f"{'.'.join(location)}: {message}" if location else message, next(iter(location), None))


_MESSAGES = {
    "extra_forbidden": "this field is unknown",
    "missing": "this field is required",
    "model_type": "the body must be a JSON object",
}


def to_api_error(error: Exception) -> ApiError:
    """The HTTP form of an error that the API expects."""
    message = str(error)
    match error:
        case ApiError():
            return error
        case InvalidRequestError(param=param):
            return ApiError(message, status=400, code="invalid_request", param=param)
        case JobNotFoundError():
            return ApiError(message, status=404, code="job_not_found", param="id")
        case QueueFullError():
            return ApiError(message, status=429, code="queue_full", retry_after=RETRY_FULL)
        case RedisError() | RedisUnavailableError():
            return ApiError.unavailable("Redis cannot be reached or cannot serve now", "redis_unavailable")
        case ModelError():
            return ApiError.unavailable(message, "model_unavailable")
        case _:
            return ApiError("internal error", status=500, code="internal_error")


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response of an error."""
    all_headers = dict(headers or {})
    if error.retry_after is not None:
        all_headers["Retry-After"] = str(error.retry_after)
    content = {"error": error_object(str(error), status=error.status, code=error.code, param=error.param)}
    return JSONResponse(content, status_code=error.status, headers=all_headers)


def install_error_handlers(app: FastAPI) -> None:
    """Give every error of `app` its JSON shape."""
    handlers: dict[type[Exception], Callable[[Request, Any], Response]] = {
        ForebayError: _on_expected,
        RedisError: _on_redis_error,
        RequestValidationError: _on_invalid_parameter,
        HTTPException: _on_http_exception,
        ClientGoneError: _on_hang_up,
        ClientDisconnect: _on_hang_up,
        Exception: _on_unexpected,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _on_expected(_request: Request, error: ForebayError) -> Response:
    return error_response(to_api_error(error))


def _on_redis_error(request: Request, error: RedisError) -> Response:
    logger.warning("%s %s: %s", request.method, request.url.path, describe(error))
    return error_response(to_api_error(error))


def _on_invalid_parameter(_request: Request, error: RequestValidationError) -> Response:
    return error_response(to_api_error(first_problem(error, skip=1)))


def _on_http_exception(_request: Request, error: HTTPException) -> Response:
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    return error_response(ApiError(error.detail, status=error.status_code, code=code), error.headers)


def _on_hang_up(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _on_unexpected(request: Request, error: Exception) -> Response:
    # Starlette raises the error again behind this response, so that the server logs it with its traceback.
    return error_response(to_api_error(error), {"x-request-id": getattr(request.state, "request_id", "")})
