"""`forebay worker`: one worker process with its engine."""

from typing import Annotated

import typer

from cli.extras import needs_extra
from cli.overrides import given
from cli.redis_url import require_url
from shared.settings import load_settings
from worker.settings import WorkerSettings


def worker(
    model: Annotated[str | None, typer.Option(help="Hugging Face id or directory (FOREBAY_MODEL)")] = None,
) -> None:
    """Run a worker: load the model, take jobs from the Redis of FOREBAY_REDIS_URL, publish their tokens."""
    settings = load_settings(WorkerSettings, **given(model=model))
    require_url(settings)
    with needs_extra("worker"):
        from worker.main import run
    raise typer.Exit(run(settings))
