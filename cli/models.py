"""`forebay models`: fetch models ahead of the first start, and list what is there."""

from typing import Annotated

import typer

from cli.common import needs_extra
from shared.settings import load_settings
from worker.settings import WorkerSettings

app = typer.Typer(help="Models on this machine.", no_args_is_help=True)


@app.command("fetch")
def fetch(
    model: Annotated[str | None, typer.Argument(help="Hugging Face id or directory. Default: FOREBAY_MODEL")] = None,
) -> None:
    """Make a model ready for use on this machine and print its directory."""
    settings = load_settings(WorkerSettings)
    with needs_extra("worker"):
        from worker.models import resolve_model

        path = resolve_model(model or settings.model, settings.data_dir, lambda text: typer.echo(text, err=True))
    typer.echo(path)


@app.command("list")
def list_models() -> None:
    """Print the models found in FOREBAY_DATA_DIR, one a line: id and directory."""
    from worker.models import stored_models

    for name, path in stored_models(load_settings(WorkerSettings).data_dir):
        typer.echo(f"{name}\t{path}")
