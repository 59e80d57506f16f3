"""Says that this worker is alive, what it serves and how busy it is: in `worker:<id>`, and in `models` for the API."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from shared.keys import QueueKeys, models_key, tokenizer_key
from shared.messages import ModelCard
from shared.redis import describe
from worker.engines.base import EngineInfo
from worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

MODELS_TTL = 86_400  # s; the card of a model whose workers are gone is known for so long: its jobs get 503, not 404


class Heartbeat:
    """`facts` gives what changes from beat to beat, by field of the worker's hash."""

    def __init__(
        self,
        client: Redis,
        keys: QueueKeys,
        settings: WorkerSettings,
        *,
        worker_id: str,
        facts: Callable[[], Mapping[str, str | int | float]],
    ) -> None:
        self._client = client
        self._keys = keys
        self._settings = settings
        self._worker_id = worker_id
        self._facts = facts
        self._info: EngineInfo | None = None
        self._tokenizer = ""
        self._is_lost = False
        self._fixed: dict[Any, Any] = {
            "model": settings.model_name,
            "engine": settings.engine,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": int(time.time() * 1000),
        }

    def serve(self, info: EngineInfo) -> None:
        """From the next beat on, the model can be used."""
        self._tokenizer = sha256(info.tokenizer_json.encode()).hexdigest()
        self._info = info

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await self.try_beat()
            await asyncio.sleep(self._settings.heartbeat_interval)

    async def try_beat(self) -> None:
        """Beat now. While Redis is away, say so once."""
        try:
            await self.beat()
            self._is_lost = False
        except (RedisError, OSError) as error:
            if not self._is_lost:
                logger.warning("no heartbeat, trying again: %s", describe(error))
            self._is_lost = True

    async def beat(self) -> None:
        """Renew all that says that this worker lives."""
        seconds, microseconds = await self._client.time()
        now = seconds * 1000 + microseconds // 1000
        key = self._keys.worker(self._worker_id)
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, mapping=self._fixed | dict(self._facts()) | {"heartbeat_at": now})
            pipeline.pexpire(key, round(self._settings.worker_timeout * 1000))
            await pipeline.execute()
        if self._info is not None:
            await self._show_model(self._info, now)

    async def leave(self) -> None:
        """This worker is gone. If it was the last one, the API hears at once that nobody serves the model."""
        await self._client.delete(self._keys.worker(self._worker_id))
        others = [key async for key in self._client.scan_iter(self._keys.workers_pattern(), count=1000)]
        if self._info is not None and not others:
            await self._show_card(self._info, 0)

    async def _show_model(self, info: EngineInfo, now: int) -> None:
        file_key = tokenizer_key(self._settings.key_prefix, self._tokenizer)
        if not await self._client.expire(file_key, MODELS_TTL):
            await self._client.set(file_key, info.tokenizer_json, ex=MODELS_TTL)
        await self._show_card(info, now)

    async def _show_card(self, info: EngineInfo, now: int) -> None:
        card = ModelCard(
            name=self._settings.model_name,
            queue=self._keys.queue,
            engine=info.engine,
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            tokenizer=self._tokenizer,
            updated_at=now,
        )
        key = models_key(self._settings.key_prefix)
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, card.name, card.to_json())
            pipeline.expire(key, MODELS_TTL)
            await pipeline.execute()
