"""`forebay worker`: one worker process with its engine."""

import logging
import os
from typing import Annotated

import typer

from cli.common import given, needs_extra
from cli.redis_url import require_url
from cli.worker_check import check_worker
from shared.settings import load_settings
from worker.settings import WorkerSettings


def worker(
    model: Annotated[str | None, typer.Option(help="Hugging Face id or directory (FOREBAY_MODEL)")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only look whether this host's worker is ready")] = False,
) -> None:
    """Run a worker: load the model, take jobs from the Redis of FOREBAY_REDIS_URL, publish their tokens."""
    settings = load_settings(WorkerSettings, **given(model=model))
    url = require_url(settings)
    if check:
        typer.echo(check_worker(settings, url))
        return
    with needs_extra("worker"):
        from worker.main import run
    code = run(settings)
    logging.shutdown()
    os._exit(code)  # the engine thread may still be loading the model: leave without waiting for it
