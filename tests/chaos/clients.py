"""Clients that write down all they see. They send a request again only as long as it was not accepted."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent

from tests.chaos.history import CUT, DONE, ERROR, LEFT, Chunk, Record
from tests.chaos.plan import ABANDON, CANCEL, PROMPTS, Request

RETRY_DELAY = 0.3  # s
NOT_REFUSALS = ("shutting_down", "job_lost")  # 503s of jobs that had been accepted


class Client:
    """Sends requests to one of several APIs."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.records: list[Record] = []
        self._urls = urls
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(None, connect=5), trust_env=False)
        self._cancelling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End what still goes on."""
        for task in self._cancelling:
            task.cancel()
        await self._http.aclose()

    async def run(self, request: Request) -> None:
        """Send a request until it is accepted, and follow it to its end."""
        record = Record(request, request.number % len(self._urls), sent_at=time.monotonic())
        self.records.append(record)
        while not await self._is_accepted(record):
            record.num_refused += 1
            record.api = (record.api + 1) % len(self._urls)
            await asyncio.sleep(RETRY_DELAY)
        record.ended_at = time.monotonic()

    async def _is_accepted(self, record: Record) -> bool:
        try:
            if record.request.is_streamed:
                return await self._stream(record)
            return await self._plain(record)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return False
        except httpx.TransportError as error:
            if record.end not in (DONE, ERROR):
                record.end, record.code = CUT, "reset"
            record.ended_at = time.monotonic()
            if not isinstance(error, (httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError)):
                record.code = type(error).__name__
            return True

    async def _stream(self, record: Record) -> bool:
        url = f"{self._urls[record.api]}/generate_stream"
        async with self._http.stream("POST", url, json=record.request.body) as response:
            if response.status_code != 200:
                await response.aread()
                return _answer_error(record, response)
            record.accepted_at = time.monotonic()
            async for event in EventSource(response).aiter_sse():
                self._note(record, event)
                if record.request.kind == ABANDON and _num_tokens(record) >= record.request.leave_after:
                    record.end = LEFT
                    return True
        if record.end not in (DONE, ERROR):
            record.end, record.code = CUT, "closed"
        return True

    def _note(self, record: Record, event: ServerSentEvent) -> None:
        data = event.json()
        if record.end in (DONE, ERROR):
            record.num_after_end += 1
        elif event.event == "token":
            chunk = Chunk(time.monotonic(), data["id"], data["index"], tuple(data["tokens"]), data["text"])
            record.chunks.append(chunk)
            if record.request.kind == CANCEL and not record.cancelled_at:
                self._cancel_when_due(record)
        elif event.event == "done":
            record.end, record.finish_reason, record.usage = DONE, data["finish_reason"], data["usage"]
        else:
            record.end, record.code = ERROR, data["error"]["code"]

    def _cancel_when_due(self, record: Record) -> None:
        if _num_tokens(record) >= record.request.leave_after:
            record.cancelled_at = time.monotonic()
            task = asyncio.create_task(self._cancel(record))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def _cancel(self, record: Record) -> None:
        """DELETE may be repeated."""
        api = record.api
        while record.cancel_status not in (200, 404):
            try:
                response = await self._http.delete(f"{self._urls[api]}/jobs/{record.chunks[0].job_id}")
                record.cancel_status = response.status_code
            except httpx.TransportError:
                pass
            if record.cancel_status not in (200, 404):
                api = (api + 1) % len(self._urls)
                await asyncio.sleep(RETRY_DELAY)

    async def _plain(self, record: Record) -> bool:
        response = await self._http.post(f"{self._urls[record.api]}/generate", json=record.request.body)
        if response.status_code != 200:
            return _answer_error(record, response)
        answer = response.json()
        results = answer["results"] if record.request.kind == PROMPTS else [answer]
        for part, result in enumerate(results):
            if "error" in result:
                record.part_errors[part] = result["error"]["code"]
            else:
                index = part if record.request.kind == PROMPTS else 0
                record.chunks.append(Chunk(time.monotonic(), result["id"], index, None, result["text"]))
        record.end, record.finish_reason = DONE, results[0].get("finish_reason", "")
        record.usage = results[0].get("usage")
        return True


def _num_tokens(record: Record) -> int:
    return sum(len(chunk.tokens or ()) for chunk in record.chunks)


def _answer_error(record: Record, response: httpx.Response) -> bool:
    """An answer that is no success; False if it says that the request was not accepted."""
    code = _code_of(response)
    if response.status_code in (429, 503) and code not in NOT_REFUSALS:
        return False
    record.end, record.code = ERROR, code
    return True


def _code_of(response: httpx.Response) -> str:
    try:
        body: Any = response.json()
        return str(body["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"
