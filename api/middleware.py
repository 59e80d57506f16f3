"""Pure ASGI middleware. (Starlette's BaseHTTPMiddleware hides a client's hang-up from the handler.)"""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError, error_response

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")  # others are replaced: they could not be logged or sent back safely


class RequestIdMiddleware:
    """Gives every request an id: the client's `x-request-id`, or a new one. It is in every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


class BodyLimitMiddleware:
    """Refuses bodies above the limit: at once if Content-Length says so, else when they have grown too large.
    (Starlette's own middleware answers in plain text.)"""

    def __init__(self, app: ASGIApp, max_body_size: int) -> None:
        self.app = app
        self.max_body_size = max_body_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > self.max_body_size:
            return await self._refuse(scope, receive, send)
        await self.app(scope, _Limited(receive, self.max_body_size), send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(_too_large(self.max_body_size), {"Connection": "close"})(scope, receive, send)


class _Limited:
    """`receive` that counts the bytes of the body."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise _too_large(self._limit)
        return message


def _too_large(limit: int) -> ApiError:
    return ApiError(f"the body is larger than {limit} bytes", status=413, code="content_too_large")
