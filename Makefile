# Two commands for everybody: `make demo` and `make test`. Each makes its own virtual environment and needs only Python 3.11+ and make.

PYTHON ?= python3
DEMO := .venv-demo
# `make quick PYTHON=python3.13 TEST=.venv-test-3.13`: another Python, beside the first one.
TEST ?= .venv-test
MUTANTS := .venv-mutants
BENCH := .venv-bench
DOCS := .venv-docs
WORKERS ?= -n 2
PIP_FLAGS := --quiet --disable-pip-version-check --require-hashes
SOURCES := bus producers consumers deploy sealbus tests

.PHONY: help demo docs test test-all native quick check budget bench bench-quick bench-scale bench-profile bench-results faults faults-quick mutants kafka format clean

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(DEMO)/ready  ## Three agents do real work over the bus, with trouble injected.
	PYTHONPATH=. $(DEMO)/bin/python -m consumers.cli demo

docs: $(DOCS)/ready  ## The documentation as a site, with references read from the code: build/docs/site. Checks its links.
	rm -rf build/docs
	$(DOCS)/bin/python -m deploy.site build/docs
	cd build/docs && ../../$(DOCS)/bin/zensical build
	$(DOCS)/bin/python -m deploy.site --check build/docs/site

test: $(TEST)/ready  ## What a user relies on, with one real Kafka: all but `slow`. ARGS="tests/bus -k name" runs a part.
	@$(TEST)/bin/python -m deploy.native
	$(TEST)/bin/python -m pytest $(WORKERS) -m "not slow" $(ARGS)

test-all: $(TEST)/ready  ## Everything else: what is marked slow, clusters of three nodes among it.
	@$(TEST)/bin/python -m deploy.native
	$(TEST)/bin/python -m pytest $(WORKERS) -m "slow and not alone" $(ARGS)
	$(TEST)/bin/python -m pytest -m "slow and alone" $(ARGS) || [ $$? -eq 5 ]  # 5: none of them is among ARGS

native: $(TEST)/ready  ## Build the compiled hot path in place; needs a Rust toolchain. make test does it where there is one.
	$(TEST)/bin/python -m deploy.native --require

quick: $(TEST)/ready  ## What one runs after each change: no brokers, no processes, nothing that waits; a minute.
	$(TEST)/bin/python -m pytest $(WORKERS) -m "not slow and not medium" -x -q $(ARGS)

check: $(TEST)/ready  ## Lint, formatting, types, architecture.
	$(TEST)/bin/ruff check $(SOURCES)
	$(TEST)/bin/ruff format --check $(SOURCES)
	$(TEST)/bin/mypy
	$(TEST)/bin/python -m pytest -q tests/test_architecture.py

budget: $(TEST)/ready  ## Processor time per message beside a commit that does not move (tests/benchmarks/budget.toml): two minutes.
	@$(TEST)/bin/python -m deploy.native
	$(TEST)/bin/python tests/benchmarks/budget.py $(ARGS)

bench: $(BENCH)/ready  ## Speed and memory beside other libraries, on a real Kafka and on files: half an hour; results in build/bench.
	@$(BENCH)/bin/python -m deploy.native
	$(BENCH)/bin/python tests/benchmarks/run.py $(ARGS)

bench-quick: $(BENCH)/ready  ## Nearly the same with few messages, once: some minutes; shows that it works, proves nothing.
	@$(BENCH)/bin/python -m deploy.native
	$(BENCH)/bin/python tests/benchmarks/run.py --quick $(ARGS)

bench-scale: $(BENCH)/ready  ## Speed over partitions, topics, keys, sizes, handlers, processes; start-up; ARGS="--only steady" for the long run.
	@$(BENCH)/bin/python -m deploy.native
	$(BENCH)/bin/python tests/benchmarks/scale.py $(ARGS)

bench-profile: $(BENCH)/ready  ## Where the time goes: flame graphs by py-spy; some minutes; in build/bench/profiles.
	@$(BENCH)/bin/python -m deploy.native
	$(BENCH)/bin/python tests/benchmarks/profiles.py $(ARGS)

bench-results: $(BENCH)/ready  ## Write what was measured, in build/bench, into tests/benchmarks/RESULTS.md.
	$(BENCH)/bin/python tests/benchmarks/run.py --results $(ARGS)

faults: $(TEST)/ready  ## Kill, freeze and cut everything, on both logs, for hours; writes tests/faults/RESULTS.md.
	$(TEST)/bin/python tests/faults/run.py --all --results $(ARGS)

faults-quick: $(TEST)/ready  ## The faults that say most, one seed each: about five minutes.
	$(TEST)/bin/python tests/faults/run.py --quick $(ARGS)

mutants: $(MUTANTS)/ready  ## Small changes to the tracker, lanes, inbox and retries that no test notices; some minutes.
	rm -rf mutants
	nice $(MUTANTS)/bin/mutmut run $(ARGS)
	@for name in $$($(MUTANTS)/bin/mutmut results | sed 's/:.*//'); do $(MUTANTS)/bin/mutmut show $$name; done

kafka: $(TEST)/ready  ## A local Kafka in the foreground; make kafka ARGS=--help says more.
	@exec $(TEST)/bin/python -m deploy.kafka $(ARGS)

format: $(TEST)/ready  ## Rewrite the sources in the project's format.
	$(TEST)/bin/ruff check --fix $(SOURCES)
	$(TEST)/bin/ruff format $(SOURCES)

clean:  ## Remove the environments and caches.
	rm -rf $(DEMO) $(TEST) .venv-test-* $(DOCS) $(MUTANTS) $(BENCH) bus/native/_core.*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis mutants build dist

$(DEMO)/ready: constraints/run.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sealbus needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install $(PIP_FLAGS) -r constraints/run.txt
	touch $@

$(TEST)/ready: constraints/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sealbus needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/python -m pip install $(PIP_FLAGS) -r constraints/dev.txt
	touch $@

$(DOCS)/ready: constraints/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install $(PIP_FLAGS) -r constraints/docs.txt
	touch $@

$(BENCH)/ready: constraints/bench.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sealbus needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install $(PIP_FLAGS) -r constraints/bench.txt
	touch $@

$(MUTANTS)/ready: constraints/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sealbus needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install $(PIP_FLAGS) -r constraints/dev.txt
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check mutmut==3.8.1
	touch $@
