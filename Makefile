# `make run` installs what running needs, `make setup` what developing needs beside; both into .venv/. A second call
# only looks at the stamps, and either may come first.

PYTHON ?= python3
ARGS   ?=
DEMO   ?= 1
VENV   := .venv
BIN    := $(VENV)/bin
# What the compiled modules are made of: .pyx, or .py with a .pxd beside it.
PXD    := $(shell find src/nsquark -name '*.pxd')
KERNEL := $(shell find src/nsquark -name '*.pyx' -o -name '*.h') $(PXD) $(wildcard $(PXD:.pxd=.py))
SOURCES := $(shell find src -name '*.py')
# What runs compiled or uncompiled is tested both ways: the twins of the kernel, and the modules that are compiled from their .py.
PURE_TESTS := $(wildcard tests/kernel tests/wire tests/log tests/http tests/nsqd/core tests/nsqd/replica/changes \
	tests/compat/test_conformance.py)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore
PIP   := $(BIN)/python -m pip
# QUIET=-q leaves out what pip says of each package.
QUIET ?=
APT   := DEBIAN_FRONTEND=noninteractive apt-get -qq -y install
JAVA  := { test -x "$$JAVA_HOME/bin/java" || command -v java; } >/dev/null

.DEFAULT_GOAL := help
.PHONY: help setup run spark test lint format docs bench crash chaos power fuzz soak lock clean

help:
	@echo 'make run      nsqlookupd, nsqd and nsqadmin on this machine, data in ./data, and a stream that Spark archives;'
	@echo '              DEMO=0 leaves stream and Spark out. Flags: ARGS="--nsqd-tcp-address=127.0.0.1:5150 --max-attempts=5"'
	@echo 'make test     lint, then all tests, and the kernel'"'"'s on both its twins'
	@echo 'make setup    what the other targets need: the pinned tools, the package and its compiled kernel in .venv/'
	@echo 'make spark    Java and PySpark, for `make run`, which calls it when the servers answer'
	@echo 'make lint     ruff and mypy; make format lets ruff mend what it can'
	@echo 'make docs     the documentation site in build/site; any warning fails it'
	@echo 'make bench    bench/daemon/compare.py (its flags: ARGS="...")'
	@echo 'make crash    nsqd killed under load, 500 times (others: ROUNDS=3000), and every message accounted for'
	@echo 'make chaos    a replica group that loses its primary under load (FAILOVERS=100; ARGS="--members 3 --ack synced --archive")'
	@echo 'make power    power cuts of a recorded nsqd (CUTS=1000)'
	@echo 'make fuzz     hostile bytes, for some minutes (MINUTES=120)'
	@echo 'make soak     steady load with restarts, for half an hour (MINUTES=30)'
	@echo 'make lock     the requirements*.lock anew from pyproject.toml'
	@echo 'make clean    away with all of it, except ./data'

setup: $(VENV)/.kernel $(VENV)/.package $(VENV)/.tools $(VENV)/.bytecode $(VENV)/.java
	@:

# Debian keeps ensurepip in a package of its own.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'nsquark needs Python 3.11 or newer: make PYTHON=python3.x' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ test "$$(id -u)" = 0 && echo 'Installing python3-venv ...' && apt-get -qq update && $(APT) python3-venv; } || \
		{ echo 'this Python has no venv: apt-get install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.runtime: requirements.lock $(VENV)/.created
	@echo 'Installing what nsquark runs on, about 30 MB: usually less than half a minute ...'
	@$(PIP) install $(QUIET) -r requirements.lock
	@touch $@

$(VENV)/.tools: requirements-dev.lock $(VENV)/.runtime
	@echo 'Installing the tools and PySpark, about 700 MB: usually 2 to 5 minutes ...'
	@$(PIP) install $(QUIET) -r requirements-dev.lock
	@touch $@

# The old modules go first: should a new one not compile, the old one must not be taken for it, and a process that
# has it mapped must not see it change. Without all modules there is no stamp, so that a compiler that comes later is used.
$(VENV)/.kernel: src/nsquark/kernel/single_source.py setup.py $(KERNEL) $(VENV)/.runtime
	@find src -name '*.so' -delete
	@mkdir -p build
	@if command -v $${CC:-cc} >/dev/null || command -v gcc >/dev/null; then \
		echo 'Compiling the kernel: usually less than a minute ...'; \
		$(BIN)/python setup.py -q build_ext --inplace 2>build/compile.log || cat build/compile.log >&2; \
	else \
		echo 'There is no C compiler (apt-get install gcc python3-dev).' | tee build/compile.log >&2; \
	fi
	@if $(BIN)/python -c 'import runpy, sys; sys.exit(bool(runpy.run_path("$<")["not_compiled"]("src")))'; \
		then touch $@; \
		else echo 'Not every module is compiled, so all run as plain Python: correct, and several times slower.' \
			'Why: build/compile.log' >&2; fi

$(VENV)/.package: pyproject.toml $(VENV)/.runtime | $(VENV)/.kernel
	@NSQUARK_COMPILED_ALREADY=1 $(PIP) -q install --no-build-isolation --no-deps --editable .
	@touch $@

# Spark runs on it; everything else does without.
$(VENV)/.java: $(VENV)/.created
	@$(JAVA) || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		  echo 'Installing Java 17 for Spark, about 50 MB ...' && \
		  apt-get -qq update && $(APT) openjdk-17-jre-headless >/dev/null; } || \
		echo 'There is no Java, and so no Spark: apt-get install openjdk-17-jre-headless' >&2
	@if $(JAVA); then touch $@; fi

$(VENV)/.spark: requirements-spark.lock $(VENV)/.runtime
	@echo 'Installing Spark, about 500 MB: usually 1 to 4 minutes ...'
	@$(PIP) install $(QUIET) --no-compile -r requirements-spark.lock
	@touch $@

# Without Java, PySpark is not worth its download.
spark: $(VENV)/.java
	@$(JAVA) && $(MAKE) -s $(VENV)/.spark

# nsqadmin's pages are tested in it.
$(VENV)/.chromium: $(VENV)/.created
	@command -v chromium >/dev/null || \
		{ test "$$(id -u)" = 0 && apt-get -qq update && \
		  DEBIAN_FRONTEND=noninteractive apt-get -qq -y install chromium >/dev/null; } || \
		echo 'There is no chromium, and so no test of pages: apt-get install chromium' >&2
	@touch $@

# So that a daemon starts fast, also where Python may not write bytecode by itself.
$(VENV)/.bytecode: $(SOURCES) $(VENV)/.package
	@$(BIN)/python -m compileall -q -j 0 src
	@touch $@

# A variable of its own, since `make -n` runs the lines that name $(MAKE) themselves.
SPARK_SETUP = $(MAKE) --no-print-directory spark QUIET=-q

# Ctrl-C stops all that it starts.
run: $(VENV)/.package $(VENV)/.kernel $(VENV)/.bytecode
	@exec $(BIN)/python -m nsquark.demo $(if $(filter 0 false no,$(DEMO)),--demo=false) \
		--spark-setup='$(SPARK_SETUP)' $(ARGS)

# All of it runs even if some of it fails; the whole suite comes last, so that its verdict is the last line.
test: setup $(VENV)/.chromium $(VENV)/.etcd
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

# Material prints an advertisement for its makers' plans unless it is told not to.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'The site is in build/site: open build/site/index.html'

bench: setup
	$(BIN)/python bench/kernel/functions.py
	$(BIN)/python bench/daemon/compare.py $(ARGS)

crash: setup
	NSQUARK_CRASH_ROUNDS=$(or $(ROUNDS),500) $(BIN)/pytest tests/crash -q --timeout=0

# Replica groups are tried with a real one.
$(VENV)/.etcd: $(VENV)/.created
	@command -v etcd >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update && \
		  $(APT) etcd-server >/dev/null; } || \
		echo 'There is no etcd, and so no test of replica groups: apt-get install etcd-server' >&2
	@if command -v etcd >/dev/null; then touch $@; fi

chaos: setup $(VENV)/.etcd
	$(BIN)/python -m reliability.chaos --failovers $(or $(FAILOVERS),100) $(ARGS)

power: setup
	$(BIN)/python -m reliability.power --cuts $(or $(CUTS),1000)

# No other target needs atheris, which guides the fuzzing by coverage.
$(VENV)/.fuzz: $(VENV)/.package
	@$(PIP) install -q 'atheris>=3.0'
	@touch $@

fuzz: setup $(VENV)/.fuzz
	$(BIN)/python -m reliability.fuzz --minutes $(or $(MINUTES),5)

soak: setup
	$(BIN)/python -m reliability.soak --minutes $(or $(MINUTES),30)

lock:
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python -m pip install --upgrade '.[dev]'
	build/lock/bin/python scripts/locks.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src -name '*.so' -delete
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
