# Rubelet's targets. `make help` lists them. Each prints what it does.

CARGO ?= cargo
TESTBED = $(CARGO) run --quiet --package rubelet-testbed-cli --bin testbed --
# One feature set for all tests, so that `make e2e` after `make test` compiles no crate twice.
TEST = $(CARGO) test --workspace --quiet

# How long `make fuzz` runs each target.
SECONDS ?= 60

.DEFAULT_GOAL := help
.PHONY: help run build size check test e2e testbed conformance bench soak fuzz goldens clean

help: ## List the targets
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## /\1\t/' | expand -t 14

run: ## Run rubelet with a demo pod on a private container runtime until Ctrl-C
	@testbed/install-packages run
	@echo "run: building rubelet (release)"
	@$(CARGO) build --release --package rubelet
	@$(TESTBED) run --rubelet target/release/rubelet

build: ## Build the release binary: target/release/rubelet
	@echo "build: release binary"
	@$(CARGO) build --release --package rubelet
	@ls -l target/release/rubelet

size: build ## The release binary against its budget, and what in it is large
	@$(CARGO) xtask size

check: ## Formatting, clippy with warnings as errors, layers, shape of code, licences, crates, documents
	@echo "check: rustfmt"
	@$(CARGO) fmt --all --check
	@echo "check: clippy"
	@$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	@echo "check: clippy of the program with profiles"
	@$(CARGO) clippy --package rubelet --features profile --quiet -- -D warnings
	@echo "check: xtask"
	@$(CARGO) xtask check

test: ## Unit, property and real-containerd tests; needs cargo and Debian's packages only
	@testbed/install-packages run test
	@echo "test: unit and integration tests"
	@$(TEST) --lib --bins --test it

e2e: ## Tests against programs built from Go modules, and in the virtual node
	@testbed/install-packages run test e2e
	@$(TESTBED) prepare --for e2e
	@echo "e2e: end-to-end tests"
	@$(TEST) --test e2e

testbed: ## Prepare everything the tests and the conformance suite need; a second run takes seconds
	@testbed/install-packages run test e2e conformance
	@$(TESTBED) prepare --for all

conformance: ## Upstream's node e2e suite: [FOCUS=regex] [LIST=file] [KUBELET=path or the word upstream] [PROCS=n]
	@testbed/install-packages run test e2e conformance
	$(if $(KUBELET),,@echo "conformance: building rubelet (release)" && $(CARGO) build --release --package rubelet)
	@$(TESTBED) conformance --kubelet "$(or $(KUBELET),target/release/rubelet)" \
		$(if $(FOCUS),--focus '$(FOCUS)') $(if $(LIST),--list '$(LIST)') $(if $(PROCS),--procs $(PROCS))

bench: ## The speed and size budget: rubelet, upstream's kubelet and the bare CRI; [BENCH='--rounds 1 --only one …']
	@testbed/install-packages run test e2e
	@echo "bench: building rubelet and what measures it (release)"
# One after the other: built together they would share features, and the binary would not be the one of `make build`.
	@$(CARGO) build --release --package rubelet
	@$(CARGO) build --release --package rubelet-testbed-cli --bin testbed
	@target/release/testbed bench --rubelet target/release/rubelet $(BENCH)

soak: ## 100,000 simulated scenarios, 1,000 kills of rubelet, 200 rounds of churn, the property tests and comparisons with 100 times the cases
	@testbed/install-packages run test e2e
	@$(TESTBED) prepare --for e2e
	@echo "soak: simulated scenarios"
	@$(CARGO) run --release --quiet --package rubelet-sim -- --seeds 0..100000
	@echo "soak: kills of rubelet"
	@RUBELET_KILLS=1000 $(TEST) --test e2e -- kill_nine
	@echo "soak: pods that come and go on a slow, lying runtime"
	@RUBELET_CHURN_ROUNDS=200 $(TEST) --test it -- nothing_grows_with_pods_that_come_and_go
	@echo "soak: property tests"
	@PROPTEST_CASES=25600 $(TEST) --lib --bins --test it
	@echo "soak: an attacker on subPaths, many pods with volumes"
	@RUBELET_ATTACK_SECONDS=60 $(TEST) --test it -- swapping_a_sub_path
	@RUBELET_VOLUME_PODS=200 $(TEST) --test e2e -- many_pods_with_five_volumes
	@echo "soak: comparisons with the oracle"
	@RUBELET_ORACLE_CASES=100000 $(TEST) --test e2e -- oracle

fuzz: ## The readers of foreign bytes under libFuzzer: [SECONDS=60, for each] [TARGETS='spdy websocket …']
	@testbed/install-packages run fuzz
	@command -v cargo-fuzz >/dev/null || { echo "fuzz: installing cargo-fuzz"; $(CARGO) install --quiet --locked cargo-fuzz; }
# What libFuzzer finds worth keeping goes to _artifacts; the kept corpus changes by hand only. No sanitizer: those need a nightly compiler.
	@for target in $(or $(TARGETS),$(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))); do \
		mkdir -p _artifacts/fuzz/$$target && echo "fuzz: $$target for $(SECONDS) s" && \
		$(CARGO) fuzz run --sanitizer none $$target _artifacts/fuzz/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(SECONDS) -max_len=65536 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 || exit 1; \
	done

goldens: ## Write the oracle's answers for the fixed corpus anew: testbed/goldens
	@testbed/install-packages run test e2e
	@$(TESTBED) goldens

clean: ## Remove build output, failed tests' logs and what killed tests left behind
	@echo "clean: leftovers of killed tests, build output, logs (the test bed's cache stays)"
	@$(TESTBED) sweep
	@$(CARGO) clean
	@rm -rf _artifacts
