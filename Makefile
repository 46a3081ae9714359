# SPDX-License-Identifier: Apache-2.0
# What a person or a CI machine runs; CMake and its presets do the work. `make` lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
SHELL := /bin/bash -o pipefail

JOBS ?= $(shell nproc)
# Passed on to ctest by `make test`, to run a part: make test CTEST_ARGS='-R reactor'
CTEST_ARGS ?=

# How often `make test` may try a test that is not about lost data (scripts/run_tests.py); CI, on machines of many, says 2.
TRIES ?= 1

# What is built and tested with AddressSanitizer: all, or core_tests (cmake/CleatBuild.cmake), which takes half the time.
ASAN ?= all
ASAN_TESTS = $(if $(filter core_tests,$(ASAN)),-L 'unit|sim|hostile|crash' -LE 'guest|ceph|bench',-LE guest)

# Passed on to the benchmarks by `make bench`, to run a part: make bench BENCH_ARGS='--only null --quick'
BENCH_ARGS ?=

# Passed on to scripts/lint.sh by `make lint`: --fast, --all, --since COMMIT.
LINT_ARGS ?=

# How long `make soak` runs each target.
SOAK_SECONDS ?= 600

# GCC 12's sanitizers lose their way in a widely randomised address space; a container may forbid turning that off.
SETARCH := $(shell setarch -R true 2>/dev/null && echo setarch -R)

# $(call build,preset[,target])
define build
	@[ -f $(call build_dir,$(1))/build.ninja ] || cmake --preset $(1) || \
	  { echo "make: configuring '$(1)' failed, see above; what is missing, 'make setup' installs" >&2; exit 1; }
	@cmake --build --preset $(1) --parallel $(JOBS) --target $(or $(2),all) || \
	  { echo "make: building '$(1)' failed; the compiler's words are above" >&2; exit 1; }
endef

# $(call run_tests,preset,labels)
define run_tests
	@mkdir -p build/logs
	@$(if $(filter release,$(1)),,$(SETARCH)) /usr/bin/python3 -B scripts/run_tests.py --tries $(TRIES) \
	  $(call build_dir,$(1)) --parallel $(JOBS) $(2) $(CTEST_ARGS) || { echo "make: tests of '$(1)' failed: they" \
	  "are named above. Guests' and daemons' logs are in $(call build_dir,$(1))/logs" >&2; exit 1; }
endef

build_dir = $(if $(filter release,$(1)),build,build-$(1))

.PHONY: help setup packages build test test-release test-asan test-tsan deb demo demo-ceph demo-crash demo-upgrade soak bench lint format clean

help: ## list the targets
	@echo "Cleat: cloud disks for virtual machines. Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@echo "From nothing to a guest doing I/O: make demo. Before a commit: make lint test."

setup: ## install what is missing (Debian 12, 13): packages, QEMU, the guests' kernel
	@scripts/setup.sh

packages: ## the packages of these alone
	@scripts/setup.sh --packages-only

build: ## build the release preset into build/, binaries in build/bin/; installs nothing
	$(call build,release)

deb: packages build ## the Debian package of the release build, in build/packages
	@cd build && rm -rf packages && cpack -G DEB >logs/cpack.log 2>&1 || { cat logs/cpack.log >&2; exit 1; }
	@ls -l build/packages/*.deb

test: setup ## set up, build, and run every test: release, then asan, then tsan
	@$(MAKE) --no-print-directory test-release
	@$(MAKE) --no-print-directory test-asan
	@$(MAKE) --no-print-directory test-tsan
	@echo "make test: ok"

test-release: build ## all tests of the release build, guests included
	$(call run_tests,release)

test-asan: ## address and undefined-behaviour sanitizers: everything but guests
	$(call build,asan,$(ASAN))
	$(call run_tests,asan,$(ASAN_TESTS))

test-tsan: ## thread sanitizer: the layers below DPDK, gRPC and Ceph
	$(call build,tsan,core_tests)
	$(call run_tests,tsan,-L '^(unit|sim)$$')

soak: build ## ten minutes of each fuzz target and of the random tests, fresh seeds; SOAK_SECONDS=10 for a trial
	@/usr/bin/python3 scripts/soak.py build --seconds $(SOAK_SECONDS)

bench: packages build ## measure against the bars and the peers, in 15 minutes: docs/benchmarks.md, build/bench/results.json
	@[ -f build-nosight/build.ninja ] || cmake -S . -B build-nosight -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DCLEAT_SIGHT=OFF -DCLEAT_GRPC=OFF -DCLEAT_TESTS=OFF -DCLEAT_FUZZ=OFF >/dev/null
	@cmake --build build-nosight --parallel $(JOBS) --target cleat-engine
	@/usr/bin/python3 -B scripts/bench/run.py $(BENCH_ARGS)

demo-crash: setup build ## kill the engine three times under a guest that verifies what it wrote; show the gaps
	@/usr/bin/python3 scripts/demo_crash.py

demo-upgrade: setup build ## exchange the engine under a guest that verifies what it wrote, and kill it beside its standby
	@/usr/bin/python3 scripts/demo_upgrade.py

demo-ceph: setup build ## a guest on encrypted disks in a Ceph cluster of its own, whose OSD stands still for a while
	@/usr/bin/python3 scripts/demo_ceph.py

demo: setup build ## set up, build, and show a guest using two disks
	@/usr/bin/python3 scripts/demo.py

lint: build ## formatting, clang-tidy, include directions, SPDX lines
	@scripts/lint.sh $(LINT_ARGS)

format: ## format the C++ files in place
	@scripts/lint.sh --format

clean: ## remove everything that make has made; installed packages stay
	rm -rf build build-debug build-asan build-tsan build-nosight
