"""The API and the worker are extras of one distribution; a missing one is said in a line."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import ForebayError


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn a missing third-party module into a ForebayError that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        own = (error.name or "").partition(".")[0] in {"api", "cli", "shared", "worker"}
        if own:  # a fault of ours, not of the installation
            raise
        raise ForebayError(
            f"{error.name} is not installed here: pip install 'forebay[{extra}]' (or forebay[all])"
        ) from None
