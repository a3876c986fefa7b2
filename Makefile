# The commands of tasklatch. `make` alone lists them. They need the Rust toolchain and Python 3.9+ with pip.

PYTHON ?= python3
CARGO ?= cargo
N ?= 300000
ARGS ?=

# Where cargo puts what it builds.
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
BENCH := $(TARGET)/release/examples/tasklatch-bench

# Tests and scripts find the real broker here, whatever the shell that calls make has set.
export TASKLATCH_TEST_NATS_SERVER := $(CURDIR)/.tools/bin/nats-server
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help setup build demo test wire lint deny measure-snapshot bench bench-build bench-short clean-tools

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## fetch the pinned nats-server and nats-py into .tools/
	@$(PYTHON) scripts/setup

build: ## build the release binary, target/release/tasklatch
	$(CARGO) build --release --locked

demo: setup build ## tell the story in the terminal, and fail if a promise was not kept
	@$(PYTHON) scripts/demo.py

test: setup ## run everything: the Rust tests, then the wire check
	$(CARGO) test --locked
	@$(MAKE) --no-print-directory wire

wire: setup ## check the protocol with a client that knows nothing else (nats-py); V=1 shows each check, ONLY=word selects
	$(CARGO) build --locked
	@PYTHONPATH="$(CURDIR)/.tools/py" $(PYTHON) tests/wire/protocol_check.py $(if $(V),--verbose) $(if $(ONLY),--only "$(ONLY)")

lint: ## check formatting, clippy and rustdoc, warnings denied
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

deny: ## check bans, licences and sources, and advisories where their database can be reached
	@$(PYTHON) scripts/deny.py

measure-snapshot: build ## measure the memory of snapshot save and restore; N=300000 tasks
	@$(PYTHON) scripts/measure_snapshot.py --tasks $(N)

bench: bench-build ## measure speed and judge the targets, in some 25 minutes; ARGS="--only first --rounds 1" selects
	@$(BENCH) --python $(PYTHON) --json $(TARGET)/bench/results.json --markdown $(TARGET)/bench/results.md \
		--plot $(TARGET)/bench/performance.svg $(ARGS)

bench-short: bench-build ## see in a minute that the benchmark works; no figure is judged
	@$(BENCH) --python $(PYTHON) --short

# The service is built by itself, as the features of what the benchmark needs are not those of the service.
bench-build: setup build
	$(CARGO) build --release --locked --example tasklatch-bench

clean-tools: ## remove .tools/
	rm -rf .tools
