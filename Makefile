# The only commands to remember. `make help` lists them.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.14 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc 2>/dev/null || echo 1)
PYTEST_ARGS ?=
# Two tests at a time, since each may start a JVM; 0 for a debugger.
TEST_PROCESSES ?= 2
PARALLEL = --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
# Counts of each run of pytest, which .ci/run adds up.
COUNTS = --junit-xml=build/counts/$@.xml
# Tests that feed damaged bytes: what the checked builds are for.
BAD_INPUT ?= -m bad_input
# Where they are; pytest would import every test module to look for them.
BAD_INPUT_FILES = $(sort $(shell grep -rl --include="test_*.py" bad_input tests))
# Tests that `make test` leaves to `make test-all`; it runs those of damaged bytes on the debug build.
LEFT_OUT = (slow or java or spark or faults or bad_input) and not smoke

# Python compiles the few modules that are imported when it first reads them.
PIP_FLAGS = --quiet --no-compile
# Each process of the tests, the demo and the builds would parse the same sources again.
unexport PYTHONDONTWRITEBYTECODE

C_SOURCES := $(wildcard csrc/*.c bench/limits/*.c)
COMPILED := $(subst /,.,$(basename $(wildcard pyrocketstore/*/_*.pyx)))
SOURCES := $(wildcard pyrocketstore/*.py pyrocketstore/*/*.py pyrocketstore/*/*/*.py)
BUILD_INPUTS := setup.py pyproject.toml $(wildcard csrc/*.[ch]) \
	$(wildcard pyrocketstore/*.pxd pyrocketstore/*/*.pxd pyrocketstore/*/*.pyx) \
	pyrocketstore/flush/async_put.py pyrocketstore/commit_log/put_room.py \
	pyrocketstore/consumer/groups.py pyrocketstore/transaction/positions.py \
	pyrocketstore/transaction/service.py
WARNINGS := -std=gnu11 -Wall -Wextra -Wconversion -Werror -fsyntax-only

.DEFAULT_GOAL := help
.PHONY: help build demo test test-quick test-all test-checked pytest test-debug test-asan test-tsan soak-interop lint lint-c lint-python graph counts \
	format actionlint dist clean bench bench-growth bench-micro

help: ## this text
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

$(VENV)/.compile: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found" >&2; exit 1; }
	@echo "Making $(VENV) and installing what compiles the modules"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) --upgrade "pip>=25.1"
	$(BIN)/python -m pip install $(PIP_FLAGS) --group compile
	@touch $@

# $(VENV)/.dev, .demo and others: one dependency group each.
$(VENV)/.%: pyproject.toml | $(VENV)/.compile
	@echo "Installing dependency group $*"
	$(BIN)/python -m pip install $(PIP_FLAGS) --group $*
	@echo "Installed dependency group $*"
	@touch $@

build/release.stamp: $(VENV)/.compile $(BUILD_INPUTS)
	@mkdir -p build
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

# Metadata and the `pyrocketstore` command; the extensions are there already and stay.
build/editable.stamp: pyproject.toml $(VENV)/.compile | build/release.stamp
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

# Packages are downloaded while the modules are compiled.
WITH_GROUP = +@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,--jobs=2) \
	--silent build/editable.stamp $(VENV)/

build: ## make .venv and compile in place
	$(WITH_GROUP).dev

demo: ## read a broker's store, kill a writer midway, recover its store, check, query in SQL
	$(WITH_GROUP).demo
	$(BIN)/python tools/demo.py

test: lint-beside-checked test-quick ## lint, damaged input on the debug build, the quick tests

# mypy and stubtest keep one core busy, and the tests of damaged bytes often less than two.
.PHONY: lint-beside-checked
lint-beside-checked: build
	$(MAKE) --no-print-directory --jobs=2 --output-sync=line lint test-checked

test-quick: build ## the quick tests, one of Spark included, on the release build
	$(BIN)/pytest $(PARALLEL) $(COUNTS) -m "not ($(LEFT_OUT))" $(PYTEST_ARGS)

test-all: test-left-out test-checked-slow ## all tests that `make test` leaves out: Java, Spark, faults, damaged input, slow ones

.PHONY: test-left-out test-checked-slow
test-left-out: build
	$(BIN)/pytest $(PARALLEL) $(COUNTS) -m "$(LEFT_OUT)" $(PYTEST_ARGS)

pytest: build ## every test on the release build; PYTEST_ARGS="tests/index -x" a part
	$(BIN)/pytest $(PARALLEL) $(PYTEST_ARGS)

build/debug.stamp: $(VENV)/.dev $(BUILD_INPUTS) $(SOURCES)
	ROCKETSTORE_BUILD=debug $(BIN)/python setup.py --quiet build --build-lib build/debug \
		--build-temp build/temp-debug
	@touch $@

build/python-%.stamp: $(VENV)/.compile $(BUILD_INPUTS) \
		$(SOURCES)
	$(BIN)/python setup.py --quiet build --build-lib build/python-$* \
		--build-temp build/temp-python-$*
	@touch $@

build/asan.stamp: $(VENV)/.dev $(BUILD_INPUTS) $(SOURCES)
	ROCKETSTORE_BUILD=asan $(BIN)/python setup.py --quiet build --build-lib build/asan \
		--build-temp build/temp-asan
	@touch $@

build/cov.stamp: $(VENV)/.dev $(BUILD_INPUTS) $(SOURCES)
	ROCKETSTORE_BUILD=cov $(BIN)/python setup.py --quiet build --build-lib build/cov \
		--build-temp build/temp-cov
	@touch $@

build/tsan.stamp: $(VENV)/.dev $(BUILD_INPUTS) $(SOURCES)
	ROCKETSTORE_BUILD=tsan $(BIN)/python setup.py --quiet build --build-lib build/tsan \
		--build-temp build/temp-tsan
	@touch $@

PYTHON_MALLOC = malloc
# PYTHONSAFEPATH keeps the release build beside the tests out of the way.
DEBUG_ENV = PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/debug
ASAN_ENV = PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/asan PYTHONMALLOC=$(PYTHON_MALLOC) \
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1$(ASAN_MORE) UBSAN_OPTIONS=print_stacktrace=1
# CPython is not instrumented; it is seen through its locks alone. No address randomisation: this
# libtsan knows no memory that lies elsewhere.
TSAN_ENV = PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/tsan \
	LD_PRELOAD="$$($(CC) -print-file-name=libtsan.so)" \
	TSAN_OPTIONS="suppressions=$(CURDIR)/tests/tsan.supp report_signal_unsafe=0 exitcode=66"
TSAN_TESTS ?= tests/faults/test_threads.py tests/commit_log/test_group_commit.py \
	tests/faults/test_kill.py::test_close_races_with_puts tests/commit_log/test_log_scan.py

# `worksteal`: one file has most of these tests.
CHECKED = $(DEBUG_ENV) $(BIN)/pytest $(PARALLEL:loadfile=worksteal) $(COUNTS) \
	$(if $(PYTEST_ARGS),,$(BAD_INPUT_FILES))
test-checked: build/debug.stamp ## damaged input on the debug build, which has every check on
	$(CHECKED) -m "bad_input and not slow" $(PYTEST_ARGS)

test-checked-slow: build/debug.stamp
	$(CHECKED) -m "bad_input and slow" $(PYTEST_ARGS)

test-debug: build/debug.stamp ## every test on the debug build
	$(DEBUG_ENV) $(BIN)/pytest $(PARALLEL) $(PYTEST_ARGS)

# Another interpreter: its environment and its build are below build/, and .venv and the build in
# place stay as they are. Tests that need Java or Spark are left out.
PYTHON_VERSION = $(shell $(PYTHON) -c \
	'import sys; print("%d.%d%s" % (*sys.version_info[:2], sys.abiflags))')
.PHONY: test-python
.PRECIOUS: build/python-%.stamp $(VENV)/.%
test-python: ## tests without Java and Spark on another interpreter: PYTHON=python3.12
	@test -n "$(PYTHON_VERSION)" || { echo "PYTHON=$(PYTHON) does not run" >&2; exit 1; }
	$(MAKE) pytest-python-$(PYTHON_VERSION) VENV=build/venv-$(PYTHON_VERSION)

pytest-python-%: build/python-%.stamp $(VENV)/.test-local
	PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/python-$* $(BIN)/python -m pytest \
		-m "not java" --ignore tests/spark $(PARALLEL) $(PYTEST_ARGS)

test-asan: build/asan.stamp ## damaged input under AddressSanitizer and UBSan
	$(ASAN_ENV) $(BIN)/pytest $(BAD_INPUT) $(PYTEST_ARGS)

# The tests of damaged bytes and the mutants, with the branches that they take counted.
.PHONY: coverage
coverage: build/cov.stamp ## line and branch coverage of the decoders
	find build/temp-cov -name '*.gcda' -delete
	PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/cov $(BIN)/python -m pytest -s \
		tests/store/test_bad_input.py tests/faults/test_fuzz.py tests/commit_log/test_log_walk.py \
		tests/columns/test_columns.py tests/reading/test_file_columns.py tests/commit_log/test_log_scan.py \
		tests/dispatch/test_dispatch.py tests/columns/test_queue_rows.py $(PYTEST_ARGS)
	$(BIN)/python tools/decoder_coverage.py

test-tsan: build/tsan.stamp ## threads under ThreadSanitizer
	$(TSAN_ENV) setarch -R $(BIN)/python -m pytest $(TSAN_TESTS) $(PYTEST_ARGS)

# Half a day of the machine; each part prints its seeds and counts, and says how to repeat a failure.
SOAK_IMAGES ?= 10000
SOAK_FSYNCS ?= 5000
SOAK_KILLS ?= 1000
SOAK_LOOPS ?= 100000
SOAK_DELAYED ?= 1000
SOAK_INTERRUPTS ?= 120
SOAK_MUTANTS ?= 1000000
SOAK_STORES ?= 20000
SOAK_TINY_STORES ?= 1000000
SOAK_API ?= 200
SOAK_TEXTS ?= 20000
SOAK_PARTS = soak-power soak-fsync soak-bits soak-kill soak-syscalls soak-threads soak-interrupts \
	soak-odd-files soak-api soak-texts soak-delayed soak-fuzz
.PHONY: bench-spark soak-stream soak $(SOAK_PARTS) soak-fuzz-buffers soak-fuzz-tiny
soak: $(SOAK_PARTS) test-tsan coverage ## all faults, for hours
soak-power: build ## what a power cut may leave, SOAK_IMAGES times
	ROCKETSTORE_SOAK_IMAGES=$(SOAK_IMAGES) $(BIN)/python -m pytest -s tests/faults/test_power_cut.py
soak-fsync: build ## every fsync of many programs fails, and opens do, SOAK_FSYNCS times
	ROCKETSTORE_SOAK_FSYNC=$(SOAK_FSYNCS) $(BIN)/python -m pytest -s tests/faults/test_fsync.py
soak-bits: build ## every bit of the last units of queues is flipped
	ROCKETSTORE_SOAK_BITS=1 $(BIN)/python -m pytest -s tests/consume_queue/test_damaged_units.py -k wrong_bit
soak-kill: build ## SIGKILL at random, SOAK_KILLS times
	ROCKETSTORE_SOAK_KILLS=$(SOAK_KILLS) $(BIN)/python -m pytest -s tests/faults/test_kill.py \
		tests/faults/test_kill_new_files.py
soak-syscalls: build ## every system call fails once
	ROCKETSTORE_SOAK_FAULTS=1 $(BIN)/python -m pytest -s -p no:logging \
		tests/faults/test_syscalls.py
soak-delayed: build ## kills, power cuts and failing calls beside delayed messages, SOAK_DELAYED times
	ROCKETSTORE_SOAK_DELAYED=$(SOAK_DELAYED) $(BIN)/python -m pytest -s tests/faults/test_delayed_faults.py
soak-threads: build ## destruction beside puts and reads, SOAK_LOOPS times
	ROCKETSTORE_SOAK_LOOPS=$(SOAK_LOOPS) $(BIN)/python -m pytest -s tests/faults/test_threads.py
soak-odd-files: build ## an unexpected file type at every path of a store
	ROCKETSTORE_SOAK_ODD_FILES=1 $(BIN)/python -m pytest -s --timeout 3600 \
		tests/faults/test_odd_files.py
soak-interrupts: build ## signal handlers at every step, SOAK_INTERRUPTS seconds for each way
	ROCKETSTORE_SOAK_INTERRUPTS=$(SOAK_INTERRUPTS) $(BIN)/python -m pytest -s \
		tests/faults/test_interrupts.py
# A length from a damaged file must not decide what is allocated. The quarantine holds what some
# dozens of mutants gave back.
soak-fuzz: soak-fuzz-buffers soak-fuzz-tiny ## SOAK_MUTANTS buffers, SOAK_STORES and SOAK_TINY_STORES stores under ASan
soak-fuzz-buffers soak-fuzz-tiny: ASAN_MORE = :max_allocation_size_mb=64:allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=5
soak-fuzz-buffers: build/asan.stamp
	$(ASAN_ENV) $(BIN)/python tests/faults/fuzz_run.py --kernels $(SOAK_MUTANTS) \
		--stores $(SOAK_STORES) --processes $(JOBS)
# Python's own allocator for small objects: twice as fast, and what compiled code allocates is
# watched all the same.
soak-fuzz-tiny: PYTHON_MALLOC = pymalloc
soak-fuzz-tiny: build/asan.stamp
	$(ASAN_ENV) $(BIN)/python tests/faults/fuzz_run.py --tiny $(SOAK_TINY_STORES) --processes $(JOBS)

soak-api: build ## calls of every compiled class and function, SOAK_API blocks for each module
	ROCKETSTORE_SOAK_API=$(SOAK_API) $(BIN)/python -m pytest -s tests/faults/test_compiled_api.py
soak-texts: build ## small files and options that are damaged, SOAK_TEXTS mutants of each kind
	ROCKETSTORE_SOAK_TEXTS=$(SOAK_TEXTS) $(BIN)/python -m pytest -s \
		tests/faults/test_texts.py

soak-stream: build ## streams whose queries and stores are killed, SOAK_ROUNDS times
	ROCKETSTORE_SOAK_STREAM=$(or $(SOAK_ROUNDS),20) $(BIN)/python -m pytest -s \
		tests/spark/test_stream.py -k kill

# 500 kills and a store of 8 GiB; ROCKETSTORE_SOAK, ROCKETSTORE_SEED and ROCKETSTORE_BIG_GIB. What
# fails is kept, with the command that repeats it alone; after five failures a part ends.
soak-interop: build ## random programs, damage and large stores beside 4.9.3, for an hour or two
	ROCKETSTORE_SOAK=$${ROCKETSTORE_SOAK:-200} $(BIN)/python -m pytest -s tests/interop $(PYTEST_ARGS)

# Those whom the benchmarks compare with, and what draws.
build/bench.stamp: pyproject.toml $(VENV)/.dev
	@mkdir -p build
	$(BIN)/python -m pip install $(PIP_FLAGS) --group bench
	@touch $@

BENCH_WORDS = $(if $(ONLY),--only $(ONLY)) $(if $(WITHOUT),--without $(WITHOUT)) $(if $(SMOKE),--smoke)

bench: build build/bench.stamp ## measure beside 4.9.3 and others; ONLY=put,scan a part, SMOKE=1 small
	$(BIN)/python -m bench $(BENCH_WORDS)

bench-growth: build build/bench.stamp ## rates by messages, queues and threads; LARGE=1 to 50 M
	$(BIN)/python -m bench --growth $(BENCH_WORDS) $(if $(LARGE),--large)

bench-spark: build build/bench.stamp ## Spark's side: reading, functions, export; docs/benchmarks.md
	$(BIN)/python -m bench.spark $(if $(SMOKE),--smoke)

bench-micro: build ## single functions, by pytest-benchmark
	BENCH_FULL=1 $(BIN)/python -m pytest bench

lint: lint-python lint-c ## ruff, mypy, stubtest, C warnings as errors

lint-python: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml $(COMPILED)

lint-c:
	@for source in $(C_SOURCES); do \
		echo "$(CC) $(WARNINGS) $$source"; $(CC) $(WARNINGS) -Icsrc $$source || exit 1; done

.PHONY: damage-page
damage-page: build ## write the table of docs/damage.md again
	ROCKETSTORE_WRITE_DAMAGE_PAGE=1 $(BIN)/pytest -n0 -q tests/verify/test_damage_table.py

graph: $(VENV)/.dev ## print which folder imports which, with the counts of imports
	$(BIN)/python tools/folder_graph.py

counts: $(VENV)/.compile ## print how much code there is, and how much of it knows the whole store
	$(BIN)/python tools/structure_counts.py

format: $(VENV)/.dev ## let ruff format everything
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

actionlint: ## lint the workflows, if actionlint is installed
	@if command -v actionlint >/dev/null 2>&1; then actionlint; \
	else echo "actionlint is not installed:" \
		"go install github.com/rhysd/actionlint/cmd/actionlint@latest"; fi

dist: build ## sdist and wheel in dist/
	$(BIN)/python -m build

clean: ## remove what was built, and .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(VENV)
	rm -f pyrocketstore/*/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
