"""Submitting jobs, and looking at or cancelling them later."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from api.admission import Admitted
from api.background import BackgroundTasks
from api.catalog import Catalog
from api.hub import Hub, Subscription
from api.relay import Relay
from api.settings import ApiSettings
from api.transcript import Transcript
from shared.errors import JobNotFoundError, QueueFullError
from shared.keys import QueueKeys
from shared.messages import FINISHED, RUNNING, JobRequest
from shared.queue import JobQueue
from shared.redis import describe

logger = logging.getLogger(__name__)

JOB_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as Redis knows it."""

    queue: JobQueue
    id: str
    fields: dict[str, str]

    @property
    def model(self) -> str:
        return str(json.loads(self.fields["request"])["model"])

    async def progress(self) -> tuple[str, int]:
        """Text and number of tokens so far."""
        if self.fields["status"] == FINISHED:
            return self.fields["result"], int(self.fields["completion_tokens"])
        pieces: list[str] = []
        seq = num_tokens = 0
        while page := await self.queue.read_log(self.id, seq):
            seq, num_tokens = page[-1].seq, page[-1].num_tokens
            pieces += (event.text for event in page)
        return "".join(pieces), num_tokens


@dataclass(frozen=True, slots=True)
class Jobs:
    """All that the routes do with jobs."""

    client: Redis
    settings: ApiSettings
    catalog: Catalog
    hub: Hub
    tasks: BackgroundTasks

    @asynccontextmanager
    async def submit(self, admitted: Admitted) -> AsyncIterator[list[Relay]]:
        """Queue jobs, all or none, and read them. Jobs whose end was not read when the context is left are cancelled:
        their client has gone. Raises QueueFullError, RedisUnavailableError, RedisError."""
        queue = self._queue(admitted.queue)
        ids = [request.id for request in admitted.requests]
        async with self.hub.subscribe([queue.keys.tokens(job_id) for job_id in ids]) as subscriptions:
            relays = [self._relay(queue, *pair) for pair in zip(admitted.requests, subscriptions, strict=True)]
            try:
                await self._enqueue(queue, admitted)
                yield relays
            except (QueueFullError, asyncio.CancelledError):
                raise  # nothing was queued; or this process ends, which is no hang-up
            except BaseException:
                self._abandon(queue, relays)  # also if an enqueueing has failed: it may have been done
                raise
            self._abandon(queue, relays)

    async def find(self, job_id: str) -> Job:
        """Raises JobNotFoundError, RedisError."""
        if JOB_ID.fullmatch(job_id):
            queues = [self._queue(name) for name in (await self.catalog.models()).queues]
            async with self.client.pipeline(transaction=False) as pipeline:
                for queue in queues:
                    pipeline.hgetall(queue.keys.job(job_id))
                replies = await pipeline.execute()
            for queue, fields in zip(queues, replies, strict=True):
                if fields:
                    return Job(queue, job_id, fields)
        raise JobNotFoundError(job_id[:64])

    async def cancel(self, job_id: str) -> str:
        """Cancel a job and return its status. Raises JobNotFoundError, RedisError."""
        job = await self.find(job_id)
        status = await job.queue.cancel(job_id)
        if status is None:
            raise JobNotFoundError(job_id)
        return "cancelling" if status == RUNNING else status

    def _queue(self, name: str) -> JobQueue:
        return JobQueue(self.client, QueueKeys(self.settings.key_prefix, name))

    def _relay(self, queue: JobQueue, request: JobRequest, subscription: Subscription) -> Relay:
        timeout = self.settings.job_timeout
        return Relay(
            queue,
            request.id,
            subscription,
            watchdog_interval=self.settings.watchdog_interval,
            timeout=timeout,
            transcript=Transcript(request, timeout=timeout, keep=self.settings.result_ttl),
        )

    async def _enqueue(self, queue: JobQueue, admitted: Admitted) -> None:
        await queue.enqueue(
            admitted.requests,
            max_waiting=self.settings.max_waiting_jobs,
            timeout=self.settings.job_timeout,
            keep=self.settings.result_ttl,
        )

    def _abandon(self, queue: JobQueue, relays: Iterable[Relay]) -> None:
        ids = [relay.job_id for relay in relays if not relay.is_over]
        if ids:
            self.tasks.spawn(self._cancel_all(queue, ids))

    async def _cancel_all(self, queue: JobQueue, ids: list[str]) -> None:
        for job_id in ids:
            try:
                await queue.cancel(job_id)
            except RedisError as error:
                logger.warning("job %s: its client has gone, it cannot be cancelled: %s", job_id, describe(error))
