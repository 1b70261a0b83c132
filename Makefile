# Everything a contributor needs; each target makes its own environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEER := .venv-peer
BENCH := .venv-bench
TESTERS ?= 2
ROUNDS ?= 50
SEED ?= 0

.PHONY: demo test test-peer lint format drills bench bench-peers clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

$(PEER)/.ready: pyproject.toml
	$(PYTHON) -m venv $(PEER)
	$(PEER)/bin/pip install --quiet --disable-pip-version-check --editable '.[test]' tensorflow-cpu
	touch $@

$(BENCH)/.ready: pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check --editable '.[keras]' tensorflow-cpu torch==2.13.0
	touch $@

demo: $(VENV)/.ready  ## train the embedded digits, on one device and on a cluster
	$(BIN)/stratagem demo

test: $(VENV)/.ready  ## all tests that need no other framework
	$(BIN)/pytest --numprocesses $(TESTERS) --dist loadfile tests/unit
	$(BIN)/pytest tests/process

test-peer: $(PEER)/.ready  ## the tests against TensorFlow, in an environment of their own
	$(PEER)/bin/pytest tests/peer

lint: $(VENV)/.ready  ## style, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/unit/test_layers.py

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

drills: $(VENV)/.ready  ## break things on purpose: make drills ROUNDS=50 SEED=0
	$(BIN)/python -m drills --rounds $(ROUNDS) --seed $(SEED)

bench: $(VENV)/.ready  ## the runtime against bare loops that move the same bytes
	$(BIN)/python benchmarks/wire.py
	PYTHONPATH=. $(BIN)/python benchmarks/session.py

bench-peers: $(BENCH)/.ready  ## all strategies against bare JAX, TensorFlow and PyTorch, each race in one run
	$(BENCH)/bin/python -m benchmarks.strategies
	$(BENCH)/bin/python -m benchmarks.parameter_servers
	$(BENCH)/bin/python benchmarks/tfrecord.py

clean:
	rm -rf $(VENV) $(PEER) $(BENCH) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
