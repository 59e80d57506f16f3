"""The SSE form of a job. Frames end with LF: sse-starlette's CRLF breaks clients that split at blank lines."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from api.relay import Relay
from api.results import job_error_object
from api.settings import ApiSettings
from shared.messages import FINISHED, Event

logger = logging.getLogger(__name__)

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SHUTDOWN_MARGIN = 3.0  # s: sse-starlette may cut a stream only after our own end of it
# Line ends for many clients' line readers, though not for SSE or JSON.
LINE_ENDS = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\x85\u2028\u2029"}


class KeepAlive(ServerSentEvent):
    """A comment that becomes the first line of the next frame: no blank line follows it, since some clients
    (httpx-sse, openai-python) take the blank line for the end of an empty event once they have seen an `id:`."""

    def encode(self) -> bytes:
        return b": keep-alive\n"


class JobStream(EventSourceResponse):
    """Submits a job and streams it. The job is submitted before the first byte is sent, so that a refusal is a plain
    HTTP error; and leaving its context on any way out cancels a job whose reader has hung up."""

    def __init__(
        self, submit: Callable[[], AbstractAsyncContextManager[list[Relay]]], model: str, settings: ApiSettings
    ) -> None:
        super().__init__(
            iter(()),  # replaced once the job is submitted
            headers=HEADERS,
            sep="\n",
            ping=settings.keep_alive_interval,
            ping_message_factory=KeepAlive,
            send_timeout=settings.send_timeout,
            shutdown_grace_period=settings.shutdown_grace + SHUTDOWN_MARGIN,
        )
        self._submit = submit
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._submit() as (relay,):
            self.body_iterator = frames(relay, self._model)
            try:
                await super().__call__(scope, receive, send)
            except SendTimeoutError:
                logger.info("job %s: its reader takes nothing, cut off", relay.job_id)


async def frames(relay: Relay, model: str) -> AsyncIterator[bytes]:
    """The stream, events that are there together in one piece."""
    async for batch in relay.batches():
        yield b"".join(frame(event, model) for event in batch)


def frame(event: Event, model: str) -> bytes:
    """`event: token`, `event: done` or `event: error`. One that no log holds has no `id:`."""
    if not event.is_terminal:
        return _encode("token", event, token_data(event))
    if event.type == FINISHED:
        return _encode("done", event, {"id": event.job_id, "model": model, **done_data(event)})
    return _encode("error", event, {"id": event.job_id, "error": job_error_object(event)})


def token_data(event: Event) -> dict[str, Any]:
    """Usually one token; several when Redis was slower than the engine, none for text that was held back."""
    return {
        "id": event.job_id,
        "index": event.num_tokens - len(event.token_ids),
        "token": event.token_ids[0] if event.token_ids else None,
        "tokens": event.token_ids,
        "text": event.text,
    }


def done_data(event: Event) -> dict[str, Any]:
    """What a finished job ends with."""
    return {key: event.data[key] for key in ("finish_reason", "usage", "timing")}


def _encode(name: str, event: Event, data: dict[str, Any]) -> bytes:
    text = orjson.dumps(data)
    for end, escaped in LINE_ENDS.items():
        text = text.replace(end, escaped)
    number = b"id: %d\n" % event.seq if event.seq else b""
    return b"%sevent: %s\ndata: %s\n\n" % (number, name.encode(), text)
