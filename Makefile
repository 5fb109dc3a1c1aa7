# The only door: each step of continuous integration is a target of one line. What needs more than a
# line is a script in .ci/, or a test. Bare `make` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# What set-up fetches or builds lies outside of the tree, where the test kit keeps its parts too.
CACHE := $(or $(KOORD_TEST_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/koord-testbed)
DENY := $(CACHE)/cargo-deny-0.20.2/bin/cargo-deny
# A macro declares them, which `cargo fmt` does not look into.
HOOKS := hooks/src/builtin/*.rs
FUZZ := $(CACHE)/cargo-fuzz-0.13.2/bin/cargo-fuzz
FUZZ_TIME ?= 30

BUILT := $(or $(CARGO_TARGET_DIR),target)

# One set of flags for every Go program of the tests, so that what they share is compiled once. They are not
# optimised: compiling is what they cost.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath "-gcflags=all=-N -l -dwarf=false" "-ldflags=-s -w"

# One selection for every build, so that the features of a crate are the same in each and nothing is
# compiled twice.
ALL := --locked --workspace --all-features

# Every test target belongs to one tier, by where it lies and how it is named: the rooms' own tests
# to `check` unless they are real_*, those in tests/integration by their first word, the rest to
# `node`.
names = $(notdir $(patsubst %.rs,%,$(patsubst %/main.rs,%,$(wildcard $(1)/tests/*.rs $(1)/tests/*/main.rs))))
rooms := $(call names,*)
beside := $(call names,tests/*)
CHECK := $(filter-out real_%,$(rooms)) house
CONFORMANCE := $(filter conformance%,$(beside))
VMS := $(filter vm_%,$(beside))
NODE := $(filter real_%,$(rooms)) $(filter-out house $(CONFORMANCE) $(VMS),$(beside))
# cargo knows a test by its name alone, so of two that have one name both would run in both tiers.
clash := $(filter $(filter-out house,$(CHECK)),$(beside))
$(if $(clash),$(error tests of two tiers are called $(clash)))
# Says nothing of targets without tests.
BRIEFLY := | awk '!/^$$|^running 0 tests|ok\. 0 passed/'
tests = $(addprefix --test ,$(or $($(1)),$(error the tier $(1) has no test)))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# By itself the demo builds no tests, to be there soon; among the tiers it uses what they have built.
.PHONY: demo
demo: ## four pods through the proxy into a real containerd (FRONT=nri: as its plugin, FRONT=watch: unasked), and a table of what came of it
	@cargo build $(ALL) $(or $(DEMO_BUILD),--bins)
	@$(BUILT)/debug/demo $(FRONT)

.PHONY: vm
vm: ## the demo in a virtual machine with cgroup v2, and a shell there to look around (NODES=2: with two NUMA nodes)
	@cargo build $(ALL) --bins
	@$(BUILT)/debug/vm $(NODES)

.PHONY: test
test: export DEMO_BUILD = --lib --bins --tests
test: tools ## everything, real runtimes included (KOORD_SKIP_TIERS=vms,fuzz leaves tiers out)
	@.ci/tiers check 'vms&' 'fuzz&' node conformance wait demo

.PHONY: check
check: fmt-check clippy doc unit deny ## the fast part: no runtime, no network; for every edit

.PHONY: fmt
fmt: ## format everything
	@cargo fmt --all && rustfmt --edition 2024 $(HOOKS) && cargo fmt --manifest-path fuzz/Cargo.toml && cargo fmt --manifest-path tests/ttrpc/Cargo.toml && gofmt -w tests

.PHONY: fmt-check
fmt-check:
	@cargo fmt --all --check && rustfmt --edition 2024 --check $(HOOKS) && cargo fmt --manifest-path fuzz/Cargo.toml --check && cargo fmt --manifest-path tests/ttrpc/Cargo.toml --check && .ci/gofmt-check

.PHONY: clippy
clippy:
	@cargo clippy --quiet $(ALL) --all-targets -- -D warnings

.PHONY: doc
doc:
	@RUSTDOCFLAGS='-D warnings -A rustdoc::private-intra-doc-links' cargo doc --quiet $(ALL) --no-deps --document-private-items

.PHONY: unit
unit:
	@cargo test --quiet $(ALL) --no-fail-fast --lib --bins $(call tests,CHECK) $(BRIEFLY)
	@cargo test --quiet $(ALL) --doc $(BRIEFLY)

.PHONY: deny
deny:
	@if [ -x $(DENY) ]; then $(DENY) --log-level error check bans licenses sources && $(DENY) --log-level error --manifest-path tests/ttrpc/Cargo.toml check licenses sources; else echo 'deny: left out, cargo-deny is not there yet; `make tools` builds it'; fi

.PHONY: advisories
advisories: $(DENY) ## known weaknesses of the locked crates; needs the network
	@$(DENY) --log-level warn check advisories

.PHONY: build
build:
	@cargo build --quiet $(ALL) --lib --bins --tests

# Fetched or built before a test runs, none of which then waits for a build.
.PHONY: parts
parts: build
	@$(BUILT)/debug/koord-testbed setup image kubelet containerd-1.6 containerd-1.7.6 containerd-1.7.13 containerd-1.7 containerd-2.1 containerd-2.2.0 containerd-2.2 containerd-2 cri-o

.PHONY: node
node: parts ## the tests on real containerds and on this machine's cgroups; needs root
	@cargo test $(ALL) --no-fail-fast $(call tests,NODE)

.PHONY: conformance
conformance: build ## CRI straight and through the proxy, compared (CRITEST=PATH: by that critest binary, FRONT=nri: with the plugin; CONTAINERD=1.6|1.7|2: on that alone)
	@if [ -n "$(CRITEST)" ]; then $(BUILT)/debug/critest $(addprefix --containerd ,$(CONTAINERD)) $(addprefix --front ,$(FRONT)) "$(CRITEST)" $(CRITEST_ARGS); else .ci/go-test && cargo test $(ALL) --no-fail-fast $(call tests,CONFORMANCE) -- --test-threads=4; fi

# The kernels are built while other tests run: only these need them.
.PHONY: kernels
kernels: parts
	@$(BUILT)/debug/koord-testbed setup qemu kernel own-kernel

# Many tests wait for one machine that makes the checks of all of them, and as many machines are on as the
# processors bear: with a test for each processor, nearly all would wait for the same one.
.PHONY: vms
vms: kernels ## the tests on kernels of our choice, with cgroup v2 and v1, in virtual machines
	@cargo test $(ALL) --no-fail-fast $(call tests,VMS) -- --test-threads=16

.PHONY: fuzz
fuzz: $(FUZZ) ## every fuzz target for FUZZ_TIME seconds
	@.ci/fuzz $(FUZZ) $(FUZZ_TIME)

.PHONY: bench
bench: ## direct, byte relay and proxy side by side, as shipped; a table and JSON (BENCH_ARGS=...)
	@cargo build --quiet --locked --workspace --bins --release
	@GOTOOLCHAIN=local GOFLAGS= go -C tests/conformance build -o $(abspath $(BUILT))/release/grpc-bench ./cmd/grpc-bench
	@$(BUILT)/release/bench $(BENCH_ARGS)
	@$(if $(filter --only% --help -h,$(BENCH_ARGS)),:,$(MAKE) promises)

# The tests that know times which are promised, and say whether they are kept. A kubelet's churn is run
# three times with each script and front: a fault that shows in every second churn is then found six times
# out of seven, with one run once out of two. With four it would be nine out of ten, but a churn takes 20 s
# and six tests run it: from one to three is 240 s longer, and six minutes more would be too many.
.PHONY: promises
promises: build ## the times that are promised, of restarts and kills on real parts; needs the machine for itself
	@KOORD_HOLD_TIMES=1 KOORD_CHURN_RUNS=3 cargo test $(ALL) --no-fail-fast --test crash --test restarts --test kubelet_churn --test watch --test outage --test demo -- --nocapture --test-threads=1 | grep -oE 'promise: .*|^Error:.*|^test result:.*|^test .* FAILED'

.PHONY: tools
tools: $(DENY) $(FUZZ) ## build what `make test` needs beside the toolchains, once
	@.ci/need g++ g++
	@.ci/need systemd-analyze systemd
	@.ci/need curl curl

$(DENY):
	@.ci/install-tool cargo-deny 0.20.2 $(CACHE)/cargo-deny-0.20.2

$(FUZZ):
	@.ci/install-tool cargo-fuzz 0.13.2 $(CACHE)/cargo-fuzz-0.13.2

.PHONY: clean
clean: ## remove what was built in the tree; the cache stays
	@cargo clean --quiet && rm -rf fuzz/target fuzz/corpus fuzz/artifacts
