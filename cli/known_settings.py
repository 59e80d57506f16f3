"""Every setting of every process, where its value comes from, and the refusal of FOREBAY_* names that nobody reads."""

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dotenv import dotenv_values
from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from api.settings import ApiSettings
from cli.up_settings import UpSettings
from shared.errors import SettingsError
from shared.settings import CommonSettings, load_settings
from worker.settings import WorkerSettings

PREFIX = "FOREBAY_"
GROUPS: tuple[tuple[str, type[CommonSettings]], ...] = (
    ("every process", CommonSettings),
    ("forebay api", ApiSettings),
    ("forebay worker", WorkerSettings),
    ("forebay up", UpSettings),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with its value now. `source` is "default", "environment" or ".env"; `variable` the one read."""

    group: str
    name: str
    value: object
    source: str
    variable: str | None
    description: str


def read_all() -> Iterator[Setting]:
    """All settings in the order of their classes. Raises SettingsError as the processes would."""
    sources = {"environment": dict(os.environ), ".env": read_dotenv()}
    for group, kind in GROUPS:
        values = load_settings(kind)
        for field, info in own_fields(kind).items():
            source, variable = _find(names_of(field, info), sources)
            name = names_of(field, info)[0]
            yield Setting(group, name, getattr(values, field), source, variable, info.description or "")


def own_fields(kind: type[CommonSettings]) -> dict[str, FieldInfo]:
    """The fields that a settings class adds to its base."""
    if kind is CommonSettings:
        return kind.model_fields
    return {name: info for name, info in kind.model_fields.items() if name not in CommonSettings.model_fields}


def names_of(field: str, info: FieldInfo) -> tuple[str, ...]:
    """The variables that set a field, the one to recommend first."""
    alias = info.validation_alias
    if isinstance(alias, AliasChoices):
        return tuple(str(choice) for choice in alias.choices)
    return (PREFIX + field.upper(),)


def known_names() -> set[str]:
    return {name for _, kind in GROUPS for field, info in own_fields(kind).items() for name in names_of(field, info)}


def read_dotenv() -> dict[str, str]:
    """The variables in .env, none if there is no such file."""
    path = Path(str(CommonSettings.model_config.get("env_file")))
    try:
        return {name: value or "" for name, value in dotenv_values(path).items()}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None


def refuse_unknown() -> None:
    """Raise SettingsError for the first FOREBAY_* variable that no process reads: it is a typing error."""
    for origin, variables in (("the environment", os.environ), (".env", read_dotenv())):
        for name in sorted(variables):
            if name.upper().startswith(PREFIX) and name.upper() not in known_names():
                raise SettingsError(f"unknown setting {name} in {origin}{_hint(name.upper())}")


def _hint(name: str) -> str:
    close = difflib.get_close_matches(name, known_names(), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else " (`forebay settings` lists all)"


def _find(names: tuple[str, ...], sources: Mapping[str, Mapping[str, str]]) -> tuple[str, str | None]:
    for source, variables in sources.items():
        upper = {key.upper(): key for key in variables}  # names are read without regard to case
        for name in names:
            if name in upper:
                return source, upper[name]
    return "default", None
