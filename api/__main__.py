"""`python -m api`: one API process, settings from the environment."""

import sys

from api.server import serve
from api.settings import ApiSettings
from shared.errors import ForebayError
from shared.settings import load_settings


def main() -> int:
    """Exit code."""
    try:
        serve(load_settings(ApiSettings))
    except ForebayError as error:
        print(f"forebay api: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
