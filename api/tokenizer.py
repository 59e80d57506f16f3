"""Tokenises off the event loop, with the tokenizer files that the workers put into Redis."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from tokenizers import Tokenizer

from shared.errors import ModelError
from shared.keys import tokenizer_key
from shared.messages import ModelCard

MAX_LOADED = 8  # tokenizers in memory; one takes some 10-100 MB


class Tokenizers:
    """One tokenizer per file; the least recently used one is dropped beyond MAX_LOADED."""

    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._loading: OrderedDict[str, asyncio.Task[Tokenizer]] = OrderedDict()

    async def encode(self, card: ModelCard, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of each text, special tokens added as the model wants them. Raises ModelError, RedisError."""
        tokenizer = await self._get(card.tokenizer)
        encodings = await asyncio.to_thread(tokenizer.encode_batch, list(texts), add_special_tokens=True)
        return [tuple(encoding.ids) for encoding in encodings]

    async def _get(self, sha256: str) -> Tokenizer:
        if sha256 not in self._loading:
            task = asyncio.create_task(self._load(sha256))
            task.add_done_callback(lambda done: self._drop_if_failed(sha256, done))
            self._loading[sha256] = task
        self._loading.move_to_end(sha256)
        while len(self._loading) > MAX_LOADED:
            self._loading.popitem(last=False)
        return await asyncio.shield(self._loading[sha256])

    async def _load(self, sha256: str) -> Tokenizer:
        text: Any = await self._client.get(tokenizer_key(self._prefix, sha256))
        if text is None:
            raise ModelError("the tokenizer of the model is not in Redis yet")
        return await asyncio.to_thread(_from_text, text)

    def _drop_if_failed(self, sha256: str, done: asyncio.Task[Tokenizer]) -> None:
        if done.cancelled() or done.exception():
            self._loading.pop(sha256, None)


def _from_text(text: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more precise
        raise ModelError(f"the tokenizer of the model cannot be loaded: {error}") from error
    tokenizer.no_truncation()  # files may ask for it: a prompt would be cut silently
    tokenizer.no_padding()
    return tokenizer
