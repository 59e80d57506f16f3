"""Which models are served now, from the cards that workers renew with every heartbeat."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from redis.asyncio import Redis

from api.errors import ApiError
from shared.errors import InvalidRequestError
from shared.keys import models_key, queue_name
from shared.messages import ModelCard

logger = logging.getLogger(__name__)

CACHE_TIME = 0.5  # s


@dataclass(frozen=True, slots=True)
class Models:
    """The models at one moment."""

    default_name: str
    cards: Mapping[str, ModelCard] = field(default_factory=dict)  # all that are known
    live: Mapping[str, ModelCard] = field(default_factory=dict)  # those with a worker that is alive

    @property
    def queues(self) -> list[str]:
        """Every queue in which a job may be found, that of the default model even while no worker has shown up."""
        names = dict.fromkeys(card.queue for card in self.cards.values())
        return list(names | {queue_name(self.default_name): None})

    def choose(self, name: str | None) -> ModelCard:
        """The card of the model that a request asks for, or of the one it gets if it asks for none."""
        if name is None:
            return self._default()
        if name in self.live:
            return self.live[name]
        if self.live and name not in self.cards and name != self.default_name:
            raise ApiError(
                f"the model {name!r} does not exist; served are: {', '.join(sorted(self.live))}",
                status=404,
                code="model_not_found",
                param="model",
            )
        raise _no_worker(name)

    def _default(self) -> ModelCard:
        if self.default_name in self.live:
            return self.live[self.default_name]
        if len(self.live) > 1:
            raise InvalidRequestError(f"several models are served, name one: {', '.join(sorted(self.live))}", "model")
        for card in self.live.values():
            return card
        raise _no_worker(self.default_name)


def _no_worker(name: str) -> ApiError:
    return ApiError.unavailable(f"no worker is alive for the model {name!r}", "no_worker")


class Catalog:
    """Reads the cards, at most every CACHE_TIME s; callers at the same moment share one look (and its failure)."""

    def __init__(self, client: Redis, *, prefix: str, default_name: str, worker_timeout: float) -> None:
        self._client = client
        self._key = models_key(prefix)
        self._default_name = default_name
        self._worker_timeout_ms = worker_timeout * 1000
        self._looking: asyncio.Task[Models] | None = None
        self._models = Models(default_name)
        self._fresh_until = 0.0

    async def models(self) -> Models:
        """The models now. Raises RedisError."""
        if time.monotonic() < self._fresh_until:
            return self._models
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._keep)
        return await asyncio.shield(self._looking)  # a caller that leaves does not take the look from the others

    async def _look(self) -> Models:
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.hgetall(self._key)
            pipeline.time()
            texts, (seconds, microseconds) = await pipeline.execute()
        oldest = int(seconds) * 1000 + int(microseconds) // 1000 - self._worker_timeout_ms
        cards = {name: card for name, text in texts.items() if (card := _parse(name, text))}
        live = {name: card for name, card in cards.items() if card.updated_at >= oldest}
        return Models(self._default_name, cards, live)

    def _keep(self, looking: asyncio.Task[Models]) -> None:
        self._looking = None
        if not looking.cancelled() and looking.exception() is None:
            self._models = looking.result()
            self._fresh_until = time.monotonic() + CACHE_TIME


def _parse(name: str, text: str) -> ModelCard | None:
    """A card, or None if it is none of ours (a worker of another version)."""
    try:
        return ModelCard.from_json(text)
    except (ValueError, TypeError) as error:
        logger.warning("the card of model %r cannot be read: %s", name, error)
        return None
