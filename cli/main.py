"""The console script `forebay`: one line on stderr for a user's error, never a traceback."""

import sys
from typing import NoReturn

import typer

from cli import api, dead, models, settings, up, worker
from cli.known_settings import refuse_unknown
from shared.errors import ForebayError, SettingsError

app = typer.Typer(
    name="forebay",
    help="A Redis-backed job queue for LLM inference: batched workers, resumable token streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(up.up)
app.command("api")(api.api)
app.command("worker")(worker.worker)
app.command("settings")(settings.settings)
app.add_typer(models.app, name="models")
app.add_typer(dead.app, name="dead")


@app.callback()
def _before_every_command() -> None:
    refuse_unknown()


def run() -> NoReturn:
    """Entry point. Exit code 2: wrong usage or setting; 1: any other error that a user can understand and mend."""
    try:
        app()
    except ForebayError as error:
        print(f"forebay: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, SettingsError) else 1)
    sys.exit(0)
