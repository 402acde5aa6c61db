# Everything here works on a fresh clone: what a target needs is installed first, into .venv, once.
# Python: the first of python3, python3.13, python3.12, python3.11 that is 3.11 or newer; or `make PYTHON=... test`.

VENV    ?= .venv
PYTHON  ?=
# Test processes that run at a time (0: all in one, for a debugger; three on two cores, since many tests wait for servers),
# and further arguments of pytest or of the demo.
WORKERS ?= 3
ARGS    ?=
# What installs: uv where there is one, else pip, which takes four times as long; by `make UV= ...` pip, whose settings uv does
# not read. QUIET=--quiet for either.
UV      ?= $(firstword $(shell command -v uv 2>/dev/null) $(wildcard $(VENV)/bin/uv))
QUIET   ?=

PY       := $(VENV)/bin/python
BASE     := $(VENV)/.done-base
# Each target installs the group of pyproject.toml that it needs, once, and each group brings what it builds on. The extras of
# memkit's that go with it are all, but for these: spaCy and what it brings are 190 MB.
done      = $(VENV)/.done-$(1)
SMALL    := mongodb,openai,tokens,matching,vector,local,classic,langgraph,sql,agents,cli
EXTRAS_demo   := mongodb
EXTRAS_openai := openai
EXTRAS_envs   := mongodb
EXTRAS_test   := $(SMALL)
EXTRAS_dist   := $(SMALL)
EXTRAS_e2e    := $(SMALL)
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
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

env: $(call done,dev) ## all that any target needs in .venv at once, 2 GB; without it each target installs its own

demo: $(call done,demo) $(if $(OPENAI_API_KEY)$(OPENAI_BASE_URL),$(call done,openai)) ## a conversation that survives a new process (examples/quickstart.py); installs 200 MB
	@$(PY) tools/parts.py openssl11
	@$(PY) examples/quickstart.py $(ARGS)

# What tests need and no package index names a dependency of ours.
openssl11: $(call done,demo)
smoke-model content-model: $(call done,e2e)
suites: $(call done,third-party)
minilm: $(call done,bench)
suites openssl11 smoke-model content-model minilm:
	@$(PY) tools/parts.py $@

# Integration tests first: the longest are among them, and what is left at the end is shared out one by one.
test: $(call done,test) openssl11 ## unit and integration tests (real MongoDB); installs 500 MB
	$(IN_MEMORY) $(PYTEST) -n $(WORKERS) $(PARALLEL) -m "not replica_set" \
	  tests/integration_tests tests/unit_tests --ignore tests/unit_tests/suites

test-nightly: ## the same with five times as many random examples, and every combination where `make test` tries a sample
	MEMKIT_EXAMPLES=5 $(MAKE) test

test-third-party: $(call done,third-party) openssl11 ## tests with packages of others that are large: spaCy, Anthropic, Google, deepagents
	$(IN_MEMORY) $(PYTEST) -n 2 $(PARALLEL) tests/third_party

# Two at a time: each has three servers of its own.
test-replica-set: $(call done,test) openssl11 ## integration tests on a replica set of three nodes
	$(IN_MEMORY) $(PYTEST) -n 2 $(PARALLEL) -m replica_set tests/integration_tests

bench-check: $(call done,bench) openssl11 ## every benchmark runs, in its quick form, and its result is complete; nothing is judged
	$(IN_MEMORY) $(PYTEST) -n 2 $(PARALLEL) tests/benchmarks

recall: $(call done,test) ## what vector memory finds of the recall set (benchmarks/texts/recall.json), above its floors, and what each part of the ranking is for
	$(IN_MEMORY) $(PYTEST) -s tests/recall

strangers: $(call done,third-party) suites openssl11 ## code that others wrote for LangChain, run with LangChain's classes and with ours, and LangChain's own tests
	$(IN_MEMORY) $(PYTEST) -n $(WORKERS) $(PARALLEL) tests/strangers tests/unit_tests/suites

gate: $(call done,third-party) openssl11 ## the reliability gate: bounds on real servers, in about 12 minutes; one at a time, since it measures
	$(PYTEST) tests/gate

gate-peer: $(call done,third-party) openssl11 ## the same tests on langchain-mongodb and LangChain's own class: good if every row fails there
	$(PYTEST) -q -rN --tb=no tests/gate --gate-system=peer

gate-nightly: $(call done,third-party) openssl11 ## the long form of the gate: 8 x 200 turns, 500 examples more, all races, an hour of random operations
	MEMKIT_GATE_PATIENCE=$${MEMKIT_GATE_PATIENCE:-10} $(PYTEST) tests/gate --gate-nightly

gate-record: $(call done,bench) ## both, written down: tests/gate/results, and what docs/reliability.md, docs/benchmarks.md and README say of them
	$(MAKE) gate ARGS=--gate-record
	$(MAKE) gate-peer ARGS=--gate-record
	$(PY) -m benchmarks.overview

audit: $(call done,third-party) ## known advisories against what is installed, and against what our version ranges admit
	$(PY) tools/audit.py

lint: $(call done,lint) ## ruff: rules and format; and the workflow files
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m check_jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/zizmor --offline --quiet .github/workflows

types: $(call done,types) ## mypy, strict, for the package, the examples, the benchmarks and a user's app (tests/typed)
	$(PY) -m mypy

e2e: $(call done,e2e) smoke-model openssl11 ## a real language model (135M, fetched once) behind a real HTTP server
	$(PYTEST) -m e2e tests/e2e

e2e-content: $(call done,e2e) content-model ## a 1.5B model (1.1 GB, fetched once): facts after summaries, rewritten questions; 20 minutes
	$(PYTEST) -m e2e_content -s tests/e2e/content

notebooks: $(call done,notebooks) openssl11 ## runs every notebook from top to bottom, and compares what it shows
	$(IN_MEMORY) $(PYTEST) -n 2 --dist worksteal tests/notebooks

docs: $(call done,docs) openssl11 ## the documentation as a site in build/site, any warning is an error; and every block of code in it is run
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	$(IN_MEMORY) $(PYTEST) -n $(WORKERS) $(PARALLEL) tests/docs

# Evidence of recall needs MEMKIT_LOCOMO=locomo.json (a full run has a million rounds, too), and quality of retrieval
# MEMKIT_FOLLOWUPS=folder.
bench: MILLION = $(and $(MEMKIT_LOCOMO),$(if $(filter --quick,$(ARGS)),,--million))
bench: $(call done,bench) openssl11 minilm ## memkit beside its peers on a real MongoDB, 20 minutes and more, and docs/benchmarks.md of it; make bench ARGS=--quick for a look that writes nothing
	for name in history context moving tokens entities titles followups sessions turn_costs; do $(PY) -m benchmarks.$$name $(ARGS); done
	$(PY) -m benchmarks.recall $(ARGS) $(MILLION)
	$(PY) -m benchmarks.overview $(filter --quick,$(ARGS))

# A target as on a fresh clone: in an environment that holds its own group and nothing else, made anew and removed again. One
# job: what a target needs goes into its environment one after the other.
bare-%:
	rm -rf .nox/bare-$*
	$(MAKE) -j 1 VENV=.nox/bare-$* UV='$(UV)' $*
	rm -rf .nox/bare-$*

bare: $(addprefix bare-,lint types docs notebooks demo recall bench-check audit test test-third-party) ## what needs no quiet machine, each target in an environment of its own as on a fresh clone; bare-NAME for any one

release-check: $(call done,dist) ## all of a release but the publishing: wheel and sbom, in dist/
	$(MAKE) wheel
	$(MAKE) sbom

wheel: ## wheel and source package, built twice, compared and checked, and the wheel in an empty environment; in dist/
sbom: ## what the wheel brings with all extras, as CycloneDX, and sums of the files; in dist/
extras: ## every extra alone in an empty environment: installs, says what is missing, does a little real work
floor: ## unit tests of the installed wheel on the oldest supported dependencies
newest: ## code of others and all unit tests, on the newest langchain-core, langchain and langgraph that exist, the latter without the classes that langchain-core 2.0 removes
pythons: ## unit tests of the installed wheel on the supported Pythons that are on this machine
# Environments of their own: see noxfile.py.
wheel sbom: $(call done,dist)
extras floor newest pythons: $(call done,envs)
wheel sbom extras floor newest pythons: openssl11
	$(IN_MEMORY) WORKERS=$(WORKERS) $(PY) -m nox --session $@ $(if $(filter pythons,$@),--no-error-on-missing-interpreters) -- $(ARGS)

clean: ## removes .venv, fetched parts, caches and builds
	rm -rf $(VENV) .parts .nox .gate dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that is there already and fits is kept. uv needs no pip in it.
FITS    := import sys, venv; $(if $(UV),,import ensurepip;) sys.exit(sys.version_info < (3, 11))
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)

$(BASE):
	@$(PY) -c '$(FITS)' 2>/dev/null || for p in $(PYTHONS); do \
	  if "$$p" -c '$(FITS)' >/dev/null 2>&1; then "$$p" -m venv --clear $(if $(UV),--without-pip) $(VENV); break; fi; \
	done
	@$(PY) -c '$(FITS)' 2>/dev/null || { echo "No Python 3.11 or newer that can make environments among: $(PYTHONS)." \
	  "Install one (Debian, Ubuntu: apt-get install python3-venv) or name one: make PYTHON=/path/to/python ..." >&2; exit 1; }
	@touch $@

# For `dev` pip first installs uv, which is part of it and quicker.
$(VENV)/.done-%: $(BASE) pyproject.toml
	@uv='$(UV)'; \
	pip() { \
	  $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null; \
	  $(PY) -m pip install $(QUIET) --upgrade 'pip>=25.1'; $(PY) -m pip install $(QUIET) "$$@"; \
	}; \
	install() { \
	  [ -n "$$uv" ] && "$$uv" pip install --python $(PY) $(QUIET) --compile-bytecode "$$@" || pip "$$@"; \
	}; \
	if [ -z "$$uv" ] && [ $* = dev ]; then pip uv; uv=$(VENV)/bin/uv; fi; \
	set -- $(if $(filter lint,$*),,--editable '.[$(or $(EXTRAS_$*),all)]') $(if $(filter openai,$*),,--group $*); \
	install "$$@"
	@touch $@ $(if $(filter dev,$*),$(foreach group,demo openai test third-party bench dist docs e2e envs lint notebooks types,$(call done,$(group))))
