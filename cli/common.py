"""What the commands share: options that stand above the environment, and a line for a missing extra."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import ForebayError

OWN_PACKAGES = frozenset({"api", "cli", "shared", "worker"})


def given(**options: object) -> dict[str, object]:
    """Only the options that were given, as overrides for load_settings."""
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn a missing third-party module into a ForebayError that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OWN_PACKAGES:  # a fault of ours, not of the installation
            raise
        raise ForebayError(
            f"{error.name} is not installed here: pip install 'forebay[{extra}]' (or forebay[all])"
        ) from None
