"""Many streams on one API process."""

import asyncio
import json

import httpx
from redis.asyncio import Redis

from shared.redis import MAX_CONNECTIONS
from tests.support.scripted_worker import ScriptedWorker

NUM_STREAMS = 1000


async def read_stream(url: httpx.URL, prompt: str) -> bytes:
    """The raw answer. (httpx itself is slow with so many connections.)"""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    body = json.dumps({"prompt": prompt}).encode()
    head = f"POST /generate_stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_thousand_streams_are_open_at_once(
    http: httpx.AsyncClient, worker: ScriptedWorker, redis_client: Redis
) -> None:
    """All are running before any gets its first token; one subscription and a bounded pool serve them."""
    streams = [asyncio.create_task(read_stream(http.base_url, f"prompt {number}")) for number in range(NUM_STREAMS)]
    attempts = await worker.take(NUM_STREAMS)
    for piece in "ABC":
        for start in range(0, NUM_STREAMS, 100):
            await worker.queue.emit([attempt.next_event(piece) for attempt in attempts[start : start + 100]])
    assert len(await redis_client.client_list(_type="pubsub")) == 1
    assert len(await redis_client.client_list(_type="normal")) <= MAX_CONNECTIONS + 10
    for attempt in attempts:
        await attempt.finish()
    for answer in await asyncio.gather(*streams):
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.count(b"\nevent: token") == 3
        assert answer.count(b"\nevent: done") == 1
