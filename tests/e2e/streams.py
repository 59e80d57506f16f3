"""Reading /generate and /generate_stream in tests."""

from dataclasses import dataclass, field
from typing import Any

import httpx
from httpx_sse import aconnect_sse


@dataclass
class Reading:
    """All frames of a stream."""

    tokens: list[dict[str, Any]] = field(default_factory=list)
    done: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(token["text"] for token in self.tokens)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for token in self.tokens for token_id in token["tokens"]]

    def check_order(self) -> None:
        """Indices count the tokens without a gap; there is exactly one end."""
        index = 0
        for token in self.tokens:
            assert token["index"] == index
            index += len(token["tokens"])
        assert (self.done is None) != (self.error is None)


async def read_stream(client: httpx.AsyncClient, body: dict[str, Any]) -> Reading:
    """Stream a request to its end."""
    reading = Reading()
    async with aconnect_sse(client, "POST", "/generate_stream", json=body) as source:
        source.response.raise_for_status()
        async for event in source.aiter_sse():
            assert reading.done is None
            assert reading.error is None
            if event.event == "token":
                reading.tokens.append(event.json())
            elif event.event == "done":
                reading.done = event.json()
            else:
                assert event.event == "error"
                reading.error = event.json()
    reading.check_order()
    return reading


async def generate(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of /generate, which must be 200."""
    response = await client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer
