"""Settings that every process reads: environment variables FOREBAY_<NAME>, or the same names in a .env file."""

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import AliasChoices, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.errors import SettingsError

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


class CommonSettings(BaseSettings):
    """Base of the API's, the worker's and the CLI's settings. Times are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(
        env_prefix="FOREBAY_", env_file=".env", extra="ignore", frozen=True, populate_by_name=True
    )

    redis_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("FOREBAY_REDIS_URL", "REDIS_URL"),
        description="Redis to use, e.g. redis://localhost:6379/0. Unset: `forebay up` starts an embedded server",
    )
    model: str = Field(default=DEFAULT_MODEL, description="Hugging Face id or local directory of the model to serve")
    served_model_name: str | None = Field(
        default=None,
        description="Name that clients use for the model. Unset: the model id, or the directory's name",
    )
    key_prefix: str = Field(
        default="forebay", pattern=r"^[A-Za-z0-9_.-]+$", description="First part of every Redis key"
    )
    data_dir: Path = Field(
        default=Path.home() / ".forebay", description="Where models and the embedded Redis keep their files"
    )
    job_timeout: float = Field(
        default=600, gt=0, le=86_400, description="A job not finished this long after it was accepted expires"
    )
    result_ttl: float = Field(default=600, gt=0, description="How long a finished job can be read")
    heartbeat_interval: float = Field(default=2.0, gt=0, le=60, description="How often a worker says that it is alive")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged")
    log_format: Literal["text", "json"] = Field(default="text", description="Shape of log lines")

    @property
    def model_name(self) -> str:
        """The name under which the model is served and found in Redis."""
        if self.served_model_name:
            return self.served_model_name
        path = Path(self.model).expanduser()
        return path.resolve().name if path.is_dir() else self.model

    @property
    def worker_timeout(self) -> float:
        """Seconds without a heartbeat after which a worker counts as gone."""
        return 4 * self.heartbeat_interval


SettingsT = TypeVar("SettingsT", bound=CommonSettings)


def load_settings(kind: type[SettingsT], **overrides: Any) -> SettingsT:
    """Read settings from the environment and .env. Raises SettingsError with one line that names what is wrong."""
    try:
        return kind(**overrides)
    except ValidationError as error:
        raise SettingsError("; ".join(_describe(kind, item) for item in error.errors())) from None


def env_name(kind: type[CommonSettings], field: str) -> str:
    """The environment variable that sets `field`."""
    return f"FOREBAY_{field.upper()}"


def _describe(kind: type[CommonSettings], item: ErrorDetails) -> str:
    field = str(item["loc"][0]) if item["loc"] else ""
    name = env_name(kind, field) if field in kind.model_fields else field
    return f"{name}={item['input']!r}: {item['msg']}"
