"""`forebay up`: everything on this machine, until Ctrl-C."""

import asyncio
import time
from typing import Annotated, Any

import typer

from api.settings import ApiSettings
from cli.common import given
from cli.console import Console
from cli.data_lock import locked
from cli.local_stack import LocalStack, StackSettings
from cli.process_group import ProcessGroup
from cli.stop_request import StopRequest
from cli.supervisor import Supervisor
from cli.up_settings import UpSettings
from shared.settings import load_settings
from worker.settings import WorkerSettings


def up(
    workers: Annotated[int | None, typer.Option(help="Worker processes (FOREBAY_UP_WORKERS)")] = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or directory (FOREBAY_MODEL)")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (FOREBAY_HOST)")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (FOREBAY_PORT)")] = None,
) -> None:
    """Run Redis (unless FOREBAY_REDIS_URL is set), workers and the API on this machine. Ctrl-C stops everything.

    It also stops when its terminal or its parent process is gone, unless started with nohup.
    """
    up_settings = load_settings(UpSettings, **given(up_workers=workers, model=model))
    data_dir = up_settings.data_dir.expanduser().absolute()
    api = load_settings(ApiSettings, **given(host=host, port=port))
    worker = load_settings(WorkerSettings, **given(model=model))
    with locked(data_dir) as data_lock:
        asyncio.run(_run(StackSettings(up_settings, api, worker, data_dir, data_lock)))


async def _run(settings: StackSettings) -> None:
    request = StopRequest()
    console = Console(on_closed=request.stop.set)
    with ProcessGroup() as group:
        supervisor = Supervisor(group, console.say)
        stack = LocalStack(settings, supervisor, console.say)
        try:
            await _serve(stack, supervisor, request, console)
        finally:
            await _stop(stack, request, console)


async def _serve(stack: LocalStack, supervisor: Supervisor, request: StopRequest, console: Console) -> None:
    """Returns when asked to stop; raises what a start or a process failed with."""
    start = asyncio.create_task(_start(stack, console))
    stop = asyncio.create_task(request.stop.wait())
    parent = asyncio.create_task(request.watch_parent())
    ends: set[asyncio.Future[Any]] = {stop, supervisor.failed}
    await asyncio.wait({start, *ends}, return_when=asyncio.FIRST_COMPLETED)
    if start.done() and start.exception() is None:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in (start, stop, parent):
        task.cancel()
    results = await asyncio.gather(start, stop, parent, return_exceptions=True)
    if supervisor.failed.done():
        raise supervisor.failed.result()
    if isinstance(results[0], Exception):
        raise results[0]


async def _start(stack: LocalStack, console: Console) -> None:
    started = time.monotonic()
    await stack.start()
    console.say(f"\nForebay is ready after {time.monotonic() - started:.1f} s: {stack.url}  (API: {stack.url}/docs)\n")
    for line in stack.try_lines():
        console.say(f"  {line}")
    console.say("\nCtrl-C stops everything.\n")


async def _stop(stack: LocalStack, request: StopRequest, console: Console) -> None:
    console.say("stopping (Ctrl-C again: at once)")
    stop = asyncio.create_task(stack.stop())
    hurry = asyncio.create_task(request.at_once.wait())
    await asyncio.wait({stop, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if hurry.done():
        stack.hurry()
    hurry.cancel()
    await stop
    console.say("stopped")
