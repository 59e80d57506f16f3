"""The ASGI middleware around an application that reads its body."""

from typing import Any

import pytest

from api.errors import ApiError
from api.middleware import BodyLimitMiddleware, RequestIdMiddleware


async def run(middleware: Any, *chunks: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> list[dict[str, Any]]:
    """Messages that the middleware sends."""
    incoming = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    incoming.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return incoming.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await middleware({"type": "http", "headers": list(headers)}, receive, send)
    return sent


async def app(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def test_a_body_within_the_limit_passes() -> None:
    assert (await run(BodyLimitMiddleware(app, 10), b"12345", b"67890"))[0]["status"] == 200


async def test_a_body_that_grows_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        await run(BodyLimitMiddleware(app, 10), b"12345", b"678901")
    assert caught.value.status == 413


@pytest.mark.parametrize("length", [b"11", b"9" * 100])
async def test_a_body_declared_too_large_is_refused_unread(length: bytes) -> None:
    sent = await run(BodyLimitMiddleware(app, 10), b"never read", headers=((b"content-length", length),))
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.parametrize("length", [b"-1", b"x", b"", "²".encode()])
async def test_a_senseless_length_is_left_to_the_counting(length: bytes) -> None:
    headers = ((b"content-length", length),)
    assert (await run(BodyLimitMiddleware(app, 10), b"12345", headers=headers))[0]["status"] == 200


@pytest.mark.parametrize(
    ("given", "is_kept"), [(b"abc", True), (b"x" * 128, True), (b"x" * 129, False), (b"a b", False), (b"\xff", False)]
)
async def test_a_request_id_is_kept_if_it_is_harmless(given: bytes, is_kept: bool) -> None:
    sent = await run(RequestIdMiddleware(app), headers=((b"x-request-id", given),))
    (value,) = [value for name, value in sent[0]["headers"] if name == b"x-request-id"]
    assert (value == given) is is_kept
    assert len(value) in (len(given), 32)
