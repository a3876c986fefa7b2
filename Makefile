# The commands of tasklatch. `make` alone lists them. They need the Rust toolchain and Python 3.9+ with pip.

PYTHON ?= python3
CARGO ?= cargo
N ?= 300000

# Tests and scripts find the real broker here, whatever the shell that calls make has set.
export TASKLATCH_TEST_NATS_SERVER := $(CURDIR)/.tools/bin/nats-server
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help setup build demo test wire lint deny measure-snapshot clean-tools

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

clean-tools: ## remove .tools/
	rm -rf .tools
