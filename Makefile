# Everything a contributor needs; each target makes its own environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEER := .venv-peer
BENCH := .venv-bench
WHEEL := .venv-wheel
TESTERS ?= 2
# Tests that start processes wait for them: one more at a time.
PROCESS_TESTERS ?= 3
ROUNDS ?= 50
# What the user gave; every benchmark has a number of rounds of its own.
GIVEN_ROUNDS := $(if $(filter file,$(origin ROUNDS)),,$(ROUNDS))
SEED ?= 0
MINUTES ?= 60
# What installs packages: pip, or uv, which takes a quarter of the time and does not read pip's settings.
INSTALLER ?= pip
INSTALL = $(INSTALL_BY_$(INSTALLER))
# Most of what is installed is never imported: the rest is compiled when it is.
INSTALL_BY_pip = pip install --quiet --disable-pip-version-check --no-compile
INSTALL_BY_uv = $(INSTALL_BY_pip) uv && $(@D)/bin/uv pip install --quiet --python $(@D)/bin/python
# What is installed to be tested: this directory, or a wheel.
INSTALLED ?= --editable '.[test]'
PYTEST = $(BIN)/pytest $(PYTEST_OPTIONS) --proved $(PROVED)
PROVED := build/proved.json
# Tests start a thousand interpreters: each would compile all modules again where the environment forbids bytecode.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-wheel test-pythons table test-peer lint format docs drills soak bench bench-peers clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) $(INSTALLED)
	touch $@

$(VENV)/.docs: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) --editable '.[test,docs]'
	touch $(VENV)/.ready $@

$(PEER)/.ready: pyproject.toml
	$(PYTHON) -m venv $(PEER)
	$(PEER)/bin/$(INSTALL) --editable '.[test]' tensorflow-cpu torch==2.13.0 pandas
	touch $@

$(BENCH)/.ready: pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/$(INSTALL) --editable '.[keras,bench]'
	touch $@

demo: $(VENV)/.ready  ## train the embedded digits, on one device and on a cluster
	$(BIN)/stratagem demo

test: $(VENV)/.ready  ## all tests that need no other framework
	rm -f $(PROVED)
	$(PYTEST) --numprocesses $(TESTERS) --dist loadfile tests/unit
	$(PYTEST) --numprocesses $(PROCESS_TESTERS) --dist loadfile tests/process
	$(BIN)/python tests/proofs.py --check $(PROVED)

test-wheel:  ## the same tests, of a wheel that is built here and installed into an environment of its own
	rm -rf $(WHEEL) dist
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(MAKE) test VENV=$(WHEEL) INSTALLED="$$(ls dist/*.whl)[test]"

SMOKE := test_readme.py runtime/test_session.py parameters/test_start.py strategies/test_multi_worker.py

test-pythons:  ## the unit tests and some of the process tests, on every Python from 3.11 on that is found here
	set -e; for each in $$($(PYTHON) tests/pythons.py); do \
	  environment=.venv-$$($$each -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  $(MAKE) $$environment/.ready VENV=$$environment PYTHON=$$each; \
	  $$environment/bin/pytest --numprocesses $(TESTERS) --dist loadfile tests/unit; \
	  $$environment/bin/pytest --numprocesses $(TESTERS) --dist loadfile $(addprefix tests/process/,$(SMOKE)); \
	done

table: $(VENV)/.ready  ## the documentation's table of what the last `make test` has proved
	$(BIN)/python tests/proofs.py $(PROVED)

test-peer: $(PEER)/.ready  ## the tests against TensorFlow and PyTorch, and Keras's own tests in scopes, in an environment of their own
	$(PEER)/bin/pytest tests/peer

lint: $(VENV)/.ready  ## style, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/unit/test_layers.py

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs  ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

drills: $(VENV)/.ready  ## break things on purpose: make drills ROUNDS=50 SEED=0, or some: ONLY='cut fill'
	$(BIN)/python -m drills --rounds $(ROUNDS) --seed $(SEED) $(addprefix --only ,$(ONLY))

soak: $(VENV)/.ready  ## train with a kill every 20 s, and see that no task grows: make soak MINUTES=60
	$(BIN)/python -m drills.soak --minutes $(MINUTES) --seed $(SEED)

bench: $(VENV)/.ready  ## the runtime against bare loops that move the same bytes
	$(BIN)/python -m benchmarks.wire
	$(BIN)/python -m benchmarks.session
	$(BIN)/python -m benchmarks.all_reduce

bench-peers: $(BENCH)/.ready  ## all against bare JAX, TensorFlow and PyTorch, into benchmarks/RESULTS.md; ROUNDS=3 is shorter
	BENCHMARK_COMMAND='make bench-peers$(GIVEN_ROUNDS:%= ROUNDS=%)' $(BENCH)/bin/python -m benchmarks $(GIVEN_ROUNDS:%=--rounds %)

clean:
	rm -rf $(VENV) .venv-3.* $(PEER) $(BENCH) $(WHEEL) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
