# Set-up, run and checks. `make up` and `make test` need Python 3.11 or newer and make, nothing else.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.forebay-ready
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: help up test test-unit test-compose chaos test-chaos check bench clean setup

help:
	@echo "make up            run everything on this machine (Ctrl-C stops it); settings: FOREBAY_* or .env"
	@echo "make test          all tests except those that need Docker"
	@echo "make test-unit     tests without Redis and model, in seconds"
	@echo "make test-compose  build the images and try docker-compose.yml (needs a Docker engine)"
	@echo "make chaos         10,000 requests under random faults, in some minutes (ARGS=\"--requests N --minutes M --seed S\")"
	@echo "make test-chaos    shows that the checker of make chaos can fail: protections taken out one by one"
	@echo "make check         lint, format, types, import rules"
	@echo "make bench         the benchmarks of bench/"
	@echo "make clean         remove the virtual environment and caches"

# exec: signals reach forebay itself, and it is make's own child
up: $(READY)
	@exec $(BIN)/forebay up

test: $(READY)
	@exec $(BIN)/pytest

test-unit: $(READY)
	@exec $(BIN)/pytest tests/unit

test-compose: $(READY)
	@exec $(BIN)/pytest -m compose tests/compose

chaos: $(READY)
	@exec $(BIN)/python -m tests.chaos $(ARGS)

test-chaos: $(READY)
	@exec $(BIN)/pytest -m chaos tests/chaos

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	@exec $(BIN)/python -m bench

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; install one or run make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing the dependencies into $(VENV) (once; some minutes, depending on the network)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'pip>=25.1'
	@$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[all]' --group dev
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
