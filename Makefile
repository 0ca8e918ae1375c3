# `make help` lists the targets. Targets that need the environment create .venv if it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
WORKERS ?= auto
# All tests of a file run in one worker, because they share servers and pipeline runs; files run in collection order.
SPREAD := --dist loadfile --no-loadscope-reorder
UV ?= uv
CLUSTER_TIMES ?= 5

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-fast faults cluster check format lock bench clean

help: ## list all targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is required; use make PYTHON=/path/to/python"; exit 2; }
	@echo "installing the Python packages into .venv (2 to 5 minutes) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(READY) ## run the full pipeline (on the synthetic dataset, unless data/ exists)
	@test -d data || $(BIN)/cloze sample
	@$(BIN)/cloze run

test: $(READY) ## run all tests but those of test-slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) -m 'not disruption and not exhaustive'

test-slow: $(READY) ## run the tests of random kills, real servers and outages
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) -m 'disruption and not exhaustive' --ignore=tests/cluster

test-fast: $(READY) ## run the tests that are not marked slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) -m 'not slow'

faults: $(READY) ## run what test-slow samples in full: each damage of each kind of file, each full disk (about 2 hours)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) -m exhaustive
	EXAMPLES=1000 $(BIN)/python -m pytest -n $(WORKERS) tests/test_damaged_readers.py

cluster: $(READY) ## run the tests on trial clusters, each fault CLUSTER_TIMES=5 times (needs root, Slurm and Docker)
	OMP_NUM_THREADS=1 CLUSTER_TIMES=$(CLUSTER_TIMES) $(BIN)/python -m pytest tests/cluster

check: $(READY) ## check lint, format and types, infra/ against its schemas, and the links of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/infra
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(READY) ## format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lock: ## rewrite requirements.lock and [tool.uv] in pyproject.toml from constraints.txt (needs uv)
	sed -i '/^# make lock writes/,$$d' pyproject.toml
	{ echo '# make lock writes the versions of constraints.txt here, for `uv sync`.'; echo '[tool.uv]'; \
		echo 'constraint-dependencies = ['; sed 's/.*/"&",/' constraints.txt | fmt -w 118 | sed 's/^/  /'; echo ']'; \
	} >> pyproject.toml
	$(UV) pip compile --quiet --universal pyproject.toml --all-extras --constraints constraints.txt --python-version 3.11 \
		--generate-hashes --no-annotate --custom-compile-command "make lock" --output-file requirements.lock

bench: $(READY) ## compare the speed with other implementations; results in build/bench/
	$(BIN)/python -m bench

clean: ## delete generated files (keeps data/, the DVC cache and MLflow's records)
	rm -rf build .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
