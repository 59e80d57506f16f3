"""`forebay settings`: every setting with its value and where that comes from."""

import json
from itertools import groupby
from typing import Annotated

import typer

from cli.known_settings import Setting, read_all
from shared.redis import mask_password


def settings(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list")] = False) -> None:
    """Print every setting: value, source and what it does. Passwords in URLs are masked."""
    found = list(read_all())
    if as_json:
        typer.echo(json.dumps([_as_dict(setting) for setting in found], indent=2))
        return
    for group, members in groupby(found, key=lambda setting: setting.group):
        typer.echo(f"\n# {group}")
        for setting in members:
            typer.echo(f"{setting.name}={_shown(setting)}\n    {_source(setting)}. {setting.description}")


def _shown(setting: Setting) -> str:
    return "" if setting.value is None else mask_password(str(setting.value))


def _source(setting: Setting) -> str:
    if setting.variable is None:
        return "default" if setting.value is not None else "unset"
    return f"from {setting.source}" + (f" ({setting.variable})" if setting.variable != setting.name else "")


def _as_dict(setting: Setting) -> dict[str, object]:
    plain = isinstance(setting.value, int | float | bool | None)
    return {
        "name": setting.name,
        "value": setting.value if plain else _shown(setting),
        "source": setting.source,
        "variable": setting.variable,
        "read_by": setting.group,
        "description": setting.description,
    }
