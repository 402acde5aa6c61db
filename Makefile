# Everything here works on a fresh clone: what a target needs is installed first, into .venv, once.
# Python: the first of python3, python3.13, python3.12, python3.11 that is 3.11 or newer; or `make PYTHON=... test`.

VENV    ?= .venv
PYTHON  ?=
# Test processes that run at a time (0: all in one, for a debugger; three on two cores, since many tests wait for servers),
# and further arguments of pytest or of the demo.
WORKERS ?= 3
ARGS    ?=
# What pip is told: nothing, so that it says how far it is; and INSTALLER=uv, which installs in a quarter of the time, but does not
# read pip's settings.
QUIET   ?=
INSTALLER ?=

PY       := $(VENV)/bin/python
BASE     := $(VENV)/.done-base
DEMO     := $(VENV)/.done-demo
OPENAI   := $(VENV)/.done-openai
DEV      := $(VENV)/.done-dev
PIP       = UV_COMPILE_BYTECODE=1 VIRTUAL_ENV=$(abspath $(VENV)) $(PY) -m $(INSTALLER) pip install $(QUIET)
PYTEST    = $(PY) -m pytest $(ARGS)
PARALLEL  = --dist worksteal -o tmp_path_retention_policy=failed

# Temporary files (servers' data, SQLite files) lie in memory where that has 6 GB of room: tests do not wait for the disk.
ifeq ($(shell df -Pk /dev/shm 2>/dev/null | awk 'END { print ($$4 > 6000000) }'),1)
IN_MEMORY = TMPDIR=/dev/shm
endif

SHELL       := /bin/sh
.SHELLFLAGS := -euc
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: $(shell awk -F : '/^[a-z][a-z0-9 -]*:/ { print $$1 }' Makefile)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

env: $(DEV) ## the whole development environment in .venv

demo: $(DEMO) $(if $(OPENAI_API_KEY)$(OPENAI_BASE_URL),$(OPENAI)) ## a conversation that survives a new process (examples/quickstart.py); needs a small part of env only
	@$(PY) tools/parts.py openssl11
	@$(PY) examples/quickstart.py $(ARGS)

# What tests need and no package index names a dependency of ours.
suites openssl11 smoke-model content-model minilm: $(DEV)
	@$(PY) tools/parts.py $@

# Integration tests first: the longest are among them, and what is left at the end is shared out one by one.
test: $(DEV) openssl11 ## unit and integration tests (real MongoDB)
	$(IN_MEMORY) $(PYTEST) -n $(WORKERS) $(PARALLEL) -m "not replica_set" \
	  tests/integration_tests tests/unit_tests --ignore tests/unit_tests/suites

# Two at a time: each has three servers of its own.
test-replica-set: $(DEV) openssl11 ## integration tests on a replica set of three nodes
	$(IN_MEMORY) $(PYTEST) -n 2 $(PARALLEL) -m replica_set tests/integration_tests

bench-check: $(DEV) openssl11 ## every benchmark runs, in its quick form, and its result is complete; nothing is judged
	$(IN_MEMORY) $(PYTEST) -n 2 $(PARALLEL) tests/benchmarks

recall: $(DEV) ## what vector memory finds of the recall set (benchmarks/texts/recall.json), above its floors, and what each part of the ranking is for
	$(IN_MEMORY) $(PYTEST) -s tests/recall

strangers: $(DEV) suites openssl11 ## code that others wrote for LangChain, run with LangChain's classes and with ours, and LangChain's own tests
	$(IN_MEMORY) $(PYTEST) -n $(WORKERS) $(PARALLEL) tests/strangers tests/unit_tests/suites

gate: $(DEV) openssl11 ## the reliability gate: bounds on real servers, in about 12 minutes; one at a time, since it measures
	$(PYTEST) tests/gate

gate-peer: $(DEV) openssl11 ## the same tests on langchain-mongodb and LangChain's own class: good if every row fails there
	$(PYTEST) -q -rN --tb=no tests/gate --gate-system=peer

gate-nightly: $(DEV) openssl11 ## the long form of the gate: 8 x 200 turns, 500 examples more, all races, an hour of random operations
	MEMKIT_GATE_PATIENCE=$${MEMKIT_GATE_PATIENCE:-10} $(PYTEST) tests/gate --gate-nightly

gate-record: $(DEV) ## both, written down: tests/gate/results and the table in docs/reliability.md
	$(MAKE) gate ARGS=--gate-record
	$(MAKE) gate-peer ARGS=--gate-record

audit: $(DEV) ## known advisories against what is installed, and against what our version ranges admit
	$(PY) tools/audit.py

lint: $(DEV) ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(DEV) ## mypy, strict, for the package, the examples, the benchmarks and a user's app (tests/typed)
	$(PY) -m mypy

e2e: $(DEV) smoke-model openssl11 ## a real language model (135M, fetched once) behind a real HTTP server
	$(PYTEST) -m e2e tests/e2e

e2e-content: $(DEV) content-model ## a 1.5B model (1.1 GB, fetched once): facts after summaries, rewritten questions; 20 minutes
	$(PYTEST) -m e2e_content -s tests/e2e/content

notebooks: $(DEV) openssl11 ## runs every notebook from top to bottom, and compares what it shows
	$(IN_MEMORY) $(PYTEST) -n 2 --dist worksteal tests/notebooks

docs: $(DEV) openssl11 ## the documentation as a site in build/site, any warning is an error; and every block of code in it is run
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	$(IN_MEMORY) $(PYTEST) -n $(WORKERS) $(PARALLEL) tests/docs

# Evidence of recall needs MEMKIT_LOCOMO=locomo.json (a full run has a million rounds, too), and quality of retrieval
# MEMKIT_FOLLOWUPS=folder.
bench: MILLION = $(and $(MEMKIT_LOCOMO),$(if $(filter --quick,$(ARGS)),,--million))
bench: $(DEV) openssl11 minilm ## memkit beside its peers on a real MongoDB, 20 minutes and more, and docs/benchmarks.md of it; make bench ARGS=--quick for a look that writes nothing
	for name in history context moving tokens entities titles followups sessions turn_costs; do $(PY) -m benchmarks.$$name $(ARGS); done
	$(PY) -m benchmarks.recall $(ARGS) $(MILLION)
	$(PY) -m benchmarks.overview $(filter --quick,$(ARGS))

wheel: ## wheel and source package, built and checked, and the wheel in an empty environment, with langchain-core only
extras: ## every extra alone in an empty environment: installs, says what is missing, does a little real work
floor: ## unit tests of the installed wheel on the oldest supported dependencies
newest: ## code of others and all unit tests, on the newest langchain-core, langchain and langgraph that exist, the latter without the classes that langchain-core 2.0 removes
pythons: ## unit tests of the installed wheel on the supported Pythons that are on this machine
# Environments of their own: see noxfile.py.
wheel extras floor newest pythons: $(DEV) openssl11
	$(IN_MEMORY) WORKERS=$(WORKERS) $(PY) -m nox --session $@ $(if $(filter pythons,$@),--no-error-on-missing-interpreters) -- $(ARGS)

clean: ## removes .venv, fetched parts, caches and builds
	rm -rf $(VENV) .parts .nox .gate dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that is there already and fits is kept.
FITS    := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)

$(BASE):
	@$(PY) -c '$(FITS)' 2>/dev/null || for p in $(PYTHONS); do \
	  if "$$p" -c '$(FITS)' >/dev/null 2>&1; then "$$p" -m venv --clear $(VENV); break; fi; \
	done
	@$(PY) -c '$(FITS)' 2>/dev/null || { echo "No Python 3.11 or newer that can make environments among: $(PYTHONS)." \
	  "Install one (Debian, Ubuntu: apt-get install python3-venv) or name one: make PYTHON=/path/to/python ..." >&2; exit 1; }
	@$(PY) -m pip install $(QUIET) --upgrade 'pip>=25.1' $(INSTALLER)
	@touch $@

$(DEMO): $(BASE) pyproject.toml # once, 200 MB, a real MongoDB among it
	@$(PIP) --editable '.[mongodb]' --group demo
	@touch $@

$(OPENAI): $(DEMO)
	@$(PIP) --editable '.[openai]'
	@touch $@

$(DEV): $(BASE) pyproject.toml # once, 1 GB
	@$(PIP) --editable '.[all]' --group dev
	@touch $(DEMO) $(OPENAI) $@
