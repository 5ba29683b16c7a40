# `make setup` makes .venv/; everything else uses it. A second `make setup` only looks at the stamps.

PYTHON ?= python3
ARGS   ?=
DEMO   ?= 1
VENV   := .venv
BIN    := $(VENV)/bin
KERNEL := $(wildcard $(addprefix src/nsquark/kernel/*.,pyx pxd h))
SOURCES := $(shell find src -name '*.py')
# What depends on the kernel closely enough to be tested on each of its twins, and the daemons without the compiled one.
PURE_TESTS := $(wildcard tests/kernel tests/wire tests/log tests/nsqd/core/test_consumer.py tests/nsqd/core/test_channel_model.py \
	tests/compat/test_conformance.py)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore
PIP := $(BIN)/python -m pip -qq

.DEFAULT_GOAL := help
.PHONY: help setup run test lint format bench crash lock clean

help:
	@echo 'make setup    .venv/ with the pinned tools, the package and its compiled kernel'
	@echo 'make run      nsqlookupd and nsqd on their usual ports, data in ./data (more flags for nsqd: ARGS="..."),'
	@echo '              and a stream that Spark archives; DEMO=0 leaves stream and Spark out'
	@echo 'make test     lint, then all tests, and the kernel'"'"'s on both its twins'
	@echo 'make lint     ruff and mypy; make format lets ruff mend what it can'
	@echo 'make bench    bench/daemon/compare.py (its flags: ARGS="...")'
	@echo 'make crash    the crash tests, 500 rounds'
	@echo 'make lock     requirements-dev.lock anew from pyproject.toml'
	@echo 'make clean    away with all of it, except ./data'

setup: $(VENV)/.package $(VENV)/.bytecode $(VENV)/.java
	@:

# Debian keeps ensurepip in a package of its own.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'nsquark needs Python 3.11 or newer: make setup PYTHON=python3.x' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ test "$$(id -u)" = 0 && apt-get -qq update && \
		  DEBIAN_FRONTEND=noninteractive apt-get -qq -y install python3-venv; } || \
		{ echo 'this Python has no venv: apt-get install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.tools: requirements-dev.lock $(VENV)/.created
	$(PIP) install -r requirements-dev.lock
	@touch $@

# The old kernel goes first: should the new one not compile, it must not be taken for it, and a process that
# has it mapped must not see it change.
$(VENV)/.package: pyproject.toml setup.py $(KERNEL) $(VENV)/.tools
	@rm -rf build src/nsquark/kernel/fast*.so
	$(PIP) install --no-build-isolation --no-deps --editable .
	@$(BIN)/python -c 'import nsquark.kernel.fast_delivery' 2>/dev/null || \
		echo 'The kernel did not compile, its pure twin is used. To see why: $(BIN)/python setup.py build_ext' >&2
	@touch $@

# Spark runs on it; everything else does without.
$(VENV)/.java: $(VENV)/.created
	@command -v java >/dev/null || \
		{ test "$$(id -u)" = 0 && apt-get -qq update && \
		  DEBIAN_FRONTEND=noninteractive apt-get -qq -y install openjdk-17-jre-headless >/dev/null; } || \
		echo 'There is no java, and so no Spark: apt-get install openjdk-17-jre-headless' >&2
	@touch $@

# So that a daemon starts fast, also where Python may not write bytecode by itself.
$(VENV)/.bytecode: $(SOURCES) $(VENV)/.package
	@$(BIN)/python -m compileall -q src
	@touch $@

# Ctrl-C stops all that it starts.
run: setup
	@exec $(BIN)/python -m nsquark.demo --demo=$(DEMO) -- $(ARGS)

# All of it runs even if some of it fails; the whole suite comes last, so that its verdict is the last line.
test: setup
	@failed=; \
	$(MAKE) --no-print-directory $(VENV)/spark-classes.jsa & \
	$(MAKE) --no-print-directory lint || failed=1; \
	wait; \
	NSQUARK_PURE=1 $(BIN)/pytest -q -n 2 $(PURE_TESTS) || failed=1; \
	$(BIN)/pytest -n 2 || failed=1; \
	test -z "$$failed"

# Many tests start a JVM; without this, and where there is no Java, they only take longer.
$(VENV)/spark-classes.jsa: $(VENV)/.tools $(VENV)/.java
	@$(BIN)/python -m tests.spark.class_archive >/dev/null 2>&1 || true

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup
	$(BIN)/python bench/kernel/functions.py
	$(BIN)/python bench/daemon/compare.py $(ARGS)

crash: setup
	NSQUARK_CRASH_ROUNDS=$${NSQUARK_CRASH_ROUNDS:-500} $(BIN)/pytest tests/crash -q --timeout=0

lock:
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python -m pip -qq install --upgrade '.[dev]'
	{ echo '# What `make setup` installs. Written by `make lock` from pyproject.toml, not by hand.'; \
	  build/lock/bin/python -m pip freeze --all --exclude nsquark --exclude pip; } > build/requirements-dev.lock
	mv build/requirements-dev.lock requirements-dev.lock

clean:
	rm -rf $(VENV) build dist src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f src/nsquark/kernel/fast*.c src/nsquark/kernel/fast*.so
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
