"""Jobs that were given up, in the stream `dead`."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import Redis

from shared.errors import JobNotFoundError
from shared.keys import INTERACTIVE, QueueKeys
from shared.messages import JobRequest
from shared.queue import JobQueue


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One job, and why it was given up."""

    entry: str  # id in the stream: the time in ms, and a number
    reason: str
    num_starts: int
    last_worker: str
    request: JobRequest

    @property
    def given_up_at(self) -> float:
        """Unix time, s."""
        return int(self.entry.partition("-")[0]) / 1000


async def read_dead_letters(client: Redis, keys: QueueKeys) -> list[DeadLetter]:
    """All of a queue, oldest first."""
    entries: Any = await client.xrange(keys.dead)
    return [
        DeadLetter(
            entry=entry,
            reason=fields["reason"],
            num_starts=int(fields["starts"]),
            last_worker=fields["last_worker"],
            request=JobRequest.from_json(fields["request"]),
        )
        for entry, fields in entries
    ]


async def find_dead_letter(client: Redis, keys: QueueKeys, job_id: str) -> DeadLetter:
    """Raises JobNotFoundError."""
    for letter in await read_dead_letters(client, keys):
        if letter.request.id == job_id:
            return letter
    raise JobNotFoundError(job_id)


async def requeue_dead_letter(queue: JobQueue, letter: DeadLetter, *, timeout: float, keep: float) -> str:
    """Queue the job once more, as a new one: its client has had the end of the old. Returns the new id."""
    request = replace(letter.request, id=secrets.token_hex(16), stream=False, job_class=INTERACTIVE)
    await queue.enqueue([request], max_waiting=1 << 30, timeout=timeout, keep=keep)
    await drop_dead_letters(queue.client, queue.keys, [letter])
    return request.id


async def drop_dead_letters(client: Redis, keys: QueueKeys, letters: Sequence[DeadLetter]) -> None:
    """Forget them."""
    if letters:
        await client.xdel(keys.dead, *(letter.entry for letter in letters))
