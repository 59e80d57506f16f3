"""`python -m cli` is the console script `forebay`; `forebay up` starts its processes this way."""

from cli.main import run

if __name__ == "__main__":
    run()
