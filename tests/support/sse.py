"""Reads a stream of /generate_stream."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent


class Stream:
    """An open stream: `next` gives one event, `rest` all that are left."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._events = EventSource(response).aiter_sse()
        self.seen: list[ServerSentEvent] = []

    async def next(self) -> ServerSentEvent:
        self.seen.append(await anext(self._events))
        return self.seen[-1]

    async def rest(self) -> list[ServerSentEvent]:
        """Read to the end and return all events since the beginning."""
        async for event in self._events:
            self.seen.append(event)
        return self.seen

    async def text(self) -> str:
        """The whole text; checks that the stream has one end, as its last event."""
        events = await self.rest()
        assert [event.event for event in events[:-1]] == ["token"] * (len(events) - 1)
        assert events[-1].event in ("done", "error")
        return text_of(events)


def text_of(events: list[ServerSentEvent]) -> str:
    """Text of the token events."""
    return "".join(event.json()["text"] for event in events if event.event == "token")


def data_of(event: ServerSentEvent) -> Any:
    """The JSON of an event."""
    return json.loads(event.data)


@asynccontextmanager
async def open_stream(http: httpx.AsyncClient, prompt: str = "hello", **options: Any) -> AsyncIterator[Stream]:
    """POST /generate_stream. Fails unless the stream begins."""
    async with http.stream("POST", "/generate_stream", json={"prompt": prompt, **options}) as response:
        assert response.status_code == 200, await response.aread()
        yield Stream(response)
