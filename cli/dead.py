"""`forebay dead`: jobs that were given up because workers died on them."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from redis.exceptions import RedisError

from cli.common import given
from cli.redis_url import require_url
from shared.dead_letters import (
    DeadLetter,
    drop_dead_letters,
    find_dead_letter,
    read_dead_letters,
    requeue_dead_letter,
)
from shared.errors import RedisUnavailableError
from shared.keys import QueueKeys, queue_name
from shared.queue import JobQueue
from shared.redis import connect, mask_password
from shared.settings import CommonSettings, load_settings

app = typer.Typer(help="Jobs that were given up because workers died on them.", no_args_is_help=True)
JobId = Annotated[str, typer.Argument(help="Id of the job, as `forebay dead list` shows it")]
Model = Annotated[str | None, typer.Option(help="Whose queue (FOREBAY_MODEL)")]
T = TypeVar("T")


@app.command("list")
def list_letters(model: Model = None) -> None:
    """Print one line for each: id, time, starts, last worker, reason."""

    async def run() -> list[DeadLetter]:
        async with _queue(model) as (queue, _):
            return await read_dead_letters(queue.client, queue.keys)

    for letter in _run(run()):
        at = datetime.fromtimestamp(letter.given_up_at).isoformat(sep=" ", timespec="seconds")
        typer.echo(f"{letter.request.id}  {at}  starts={letter.num_starts}  {letter.last_worker}  {letter.reason}")


@app.command("show")
def show(job_id: JobId, model: Model = None) -> None:
    """Print all that is known of one, as JSON."""

    async def run() -> DeadLetter:
        async with _queue(model) as (queue, _):
            return await find_dead_letter(queue.client, queue.keys, job_id)

    typer.echo(json.dumps(asdict(_run(run())), ensure_ascii=False, indent=2))


@app.command("requeue")
def requeue(job_id: JobId, model: Model = None) -> None:
    """Queue one once more, as a new job, and print the new id."""

    async def run() -> str:
        async with _queue(model) as (queue, settings):
            letter = await find_dead_letter(queue.client, queue.keys, job_id)
            return await requeue_dead_letter(queue, letter, timeout=settings.job_timeout, keep=settings.result_ttl)

    typer.echo(_run(run()))


@app.command("drop")
def drop(job_id: JobId, model: Model = None) -> None:
    """Forget one."""

    async def run() -> None:
        async with _queue(model) as (queue, _):
            letter = await find_dead_letter(queue.client, queue.keys, job_id)
            await drop_dead_letters(queue.client, queue.keys, [letter])

    _run(run())


@asynccontextmanager
async def _queue(model: str | None) -> AsyncIterator[tuple[JobQueue, CommonSettings]]:
    settings = load_settings(CommonSettings, **given(model=model))
    client = connect(require_url(settings))
    try:
        yield JobQueue(client, QueueKeys(settings.key_prefix, queue_name(settings.model_name))), settings
    except (RedisError, OSError) as error:
        raise RedisUnavailableError(f"Redis does not answer: {mask_password(str(error))}") from None
    finally:
        await client.aclose()


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
