"""`forebay api`: one API process."""

from typing import Annotated

import typer

from api.settings import ApiSettings
from cli.common import given, needs_extra
from cli.redis_url import require_url
from shared.settings import load_settings


def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on (FOREBAY_HOST)")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (FOREBAY_PORT)")] = None,
) -> None:
    """Run an API process: HTTP on one side, the Redis of FOREBAY_REDIS_URL on the other."""
    settings = load_settings(ApiSettings, **given(host=host, port=port))
    require_url(settings)
    with needs_extra("api"):
        from api.server import serve
    serve(settings)
