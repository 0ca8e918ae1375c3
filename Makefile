# Each target makes .venv when it is missing. `make help` lists them.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
WORKERS ?= auto
# A file stays with one worker, which its servers and whole runs are for; the longest files come first.
SPREAD := --dist loadfile --no-loadscope-reorder
UV ?= uv

.DEFAULT_GOAL := help
.PHONY: help run test test-fast check format lock bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(READY) ## from raw text to the leaderboard (on the sample world, unless data/ is there)
	@test -d data || $(BIN)/cloze sample
	@$(BIN)/cloze run

test: $(READY) ## all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(SPREAD)

test-fast: $(READY) ## the tests that take seconds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) -m 'not slow'

check: $(READY) ## lint, format, types, and infra/ held against its schemas
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/infra

format: $(READY) ## format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lock: $(READY) ## requirements.lock anew, from pyproject.toml and constraints.txt (needs uv)
	@mkdir -p build
	$(UV) pip compile --quiet --universal pyproject.toml --all-extras --constraints constraints.txt --python-version 3.11 \
		--format pylock.toml --output-file build/pylock.toml
	$(BIN)/python infra/lock.py build/pylock.toml requirements.lock

bench: $(READY) ## speed beside peers, as ratios; results in build/bench/
	$(BIN)/python -m bench

clean: ## remove what can be made again (keeps data/, the DVC cache and MLflow's records)
	rm -rf build .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
