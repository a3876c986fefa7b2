# The commands of tasklatch. `make` alone lists them. They need the Rust toolchain and Python 3.9+ with pip.

PYTHON ?= python3
CARGO ?= cargo
SECONDS ?= 60

# The older servers that `make servers` fetches, and the tests that are run against each: by the names they begin with,
# those in which the server has the largest part.
SERVERS ?= 2.9.10 2.10.25 2.11.11 2.12.8 2.14.6
SERVER_TESTS ?= events:: scenarios:: durable:: streams:: readiness:: stopping::
ARGS ?=
MINUTES ?= 20
EVENTS ?= jetstream

# Where cargo puts what it builds.
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
BENCH := $(TARGET)/release/examples/tasklatch-bench

# Tests and scripts find the real broker here, whatever the shell that calls make has set.
export TASKLATCH_TEST_NATS_SERVER := $(CURDIR)/.tools/bin/nats-server
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help setup servers build demo test test-servers torture wire compose-test lint deny measure-snapshot measure-durable bench bench-build bench-short fuzz clean-tools

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## fetch the pinned nats-server and nats-py into .tools/
	@$(PYTHON) scripts/setup

servers: ## fetch older servers into .tools/servers/ too; SERVERS="2.10.25 2.12.8" selects
	@$(PYTHON) scripts/setup --servers $(SERVERS)

build: ## build the release binary, target/release/tasklatch
	$(CARGO) build --release --locked

demo: setup build ## tell the story in the terminal, and fail if a promise was not kept
	@$(PYTHON) scripts/demo.py

test: setup ## run everything: the Rust tests, then the wire check
	$(CARGO) test --locked
	@$(MAKE) --no-print-directory wire

test-servers: servers ## run the tests that the server matters most to against each older server; SERVERS="2.9.10" selects
	@$(CARGO) test --locked --test it --no-run
	@failed=; for version in $(SERVERS); do \
		printf '\n==== nats-server %s ====\n' "$$version"; \
		TASKLATCH_TEST_NATS_SERVER="$(CURDIR)/.tools/servers/$$version/nats-server" \
			$(CARGO) test --quiet --locked --test it -- $(SERVER_TESTS) || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "test-servers: failed against nats-server$$failed" >&2; exit 1; fi

torture: setup ## make trouble for MINUTES=20 and check everything; SEED=7 repeats it, EVENTS=core, ARGS="--only disk"
	$(CARGO) test --locked --test torture -- --minutes $(MINUTES) --events $(EVENTS) $(if $(SEED),--seed $(SEED)) $(ARGS)

wire: setup ## check the protocol with a client that knows nothing else (nats-py); V=1 shows each check, ONLY=word selects
	$(CARGO) build --locked
	@PYTHONPATH="$(CURDIR)/.tools/py" $(PYTHON) tests/wire/protocol_check.py $(if $(V),--verbose) $(if $(ONLY),--only "$(ONLY)")

compose-test: ## bring compose.yaml up, test it from a container of its own, and take it down; TIMES=2 runs the tests so often
	@scripts/compose-test $(TIMES)

lint: ## check formatting, clippy and rustdoc, warnings denied
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	$(CARGO) fmt --check --manifest-path tests/compose/Cargo.toml
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --manifest-path tests/compose/Cargo.toml -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

deny: ## check bans, licences, sources and advisories; ADVISORIES=skip where their database cannot be reached
	@$(PYTHON) scripts/deny.py $(if $(filter skip,$(ADVISORIES)),--without-advisories)

fuzz: ## fuzz decoding and the equality of content; SECONDS=60 for each target, ONLY=decode selects
	@$(PYTHON) scripts/fuzz.py --seconds $(SECONDS) $(if $(ONLY),--only "$(ONLY)")

measure-snapshot: build ## measure the memory of snapshot save and restore; N=300000 tasks
	@$(PYTHON) scripts/measure_snapshot.py --tasks $(or $(N),300000)

measure-durable: setup build ## measure memory and time of durable reports that wait; N=200000 reports
	@PYTHONPATH="$(CURDIR)/.tools/py" $(PYTHON) scripts/measure_durable.py --reports $(or $(N),200000)

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
