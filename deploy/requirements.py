"""Prints what pip must install for some extras of pyproject.toml, so that an image has a layer for it before the code.

python requirements.py pyproject.toml api
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """The dependencies of the project and of these extras."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(item for extra in extras for item in optional[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
