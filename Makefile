# SPDX-License-Identifier: Apache-2.0
# What a person or a CI machine runs; CMake and its presets do the work. `make` lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
SHELL := /bin/bash -o pipefail

JOBS ?= $(shell nproc)
# Which tests are built: ON, those of `make test`; ALL, those of `make test-all`.
TESTS ?= ON
# Passed on to ctest, to run a part: make build-release test-release CTEST_ARGS='-R reactor'
CTEST_ARGS ?=
# Passed on to scripts/run_tests.py: CI says --may-repeat-one and --may-skip.
RUN_TESTS_ARGS ?=
# Passed on to the benchmarks by `make bench`, to run a part: make bench BENCH_ARGS='--only null --quick'
BENCH_ARGS ?=
# Passed on to scripts/lint.sh by `make lint`: --fast, --all, --since COMMIT.
LINT_ARGS ?=
# The older version from which `make test-all` and `make test-upgrade` upgrade, and to which they go back: a commit, or `none`. Empty: the
# newest release before this commit, or what CHANGELOG.md names.
BASE ?=
# The drive that `make test-nvme` tries, and destroys.
DEVICE ?=
# How `make demo-nvmeof` reaches the namespace: tcp or rdma.
TRANSPORT ?= tcp
# How long `make soak` runs each target.
SOAK_SECONDS ?= 600
# What `make unit` builds and runs, where, and what it passes on: make unit DIR=virtio FLAVOUR=asan ARGS=--gtest_filter='Split*'
DIR ?=
FLAVOUR ?= release
ARGS ?=

# Sanitizers lose their way in a widely randomised address space; a container may forbid turning that off.
SETARCH := $(shell setarch -R true 2>/dev/null && echo setarch -R)

build_dir = $(if $(filter release,$(1)),build,build-$(1))

# $(call build,preset,targets[,CLEAT_TESTS])
define build
	@scripts/configure.sh $(1) $(3)
	@cmake --build --preset $(1) --parallel $(JOBS) --target $(2) || \
	  { echo "make: building '$(1)' failed; the compiler's words are above" >&2; exit 1; }
endef

# $(call run_tests,preset)
define run_tests
	@$(if $(filter release,$(1)),,$(SETARCH)) /usr/bin/python3 -B scripts/run_tests.py $(RUN_TESTS_ARGS) \
	  $(call build_dir,$(1)) $(CTEST_ARGS) || { echo "make: tests of '$(1)' failed: they" \
	  "are named above$(if $(filter release,$(1)),. Logs of guests are in build/logs)" >&2; exit 1; }
endef

DAEMONS := cleatd cleat-engine cleatctl

.PHONY: help setup build build-tests test test-all test-upgrade debian13 unit deb demo demo-ceph demo-crash demo-export demo-nvme demo-nvmeof demo-upgrade test-nvme soak bench lint format clean \
  known-transport build-release build-asan build-tsan test-release test-asan test-tsan setup-build setup-demo setup-demo-ceph setup-bench setup-lint setup-unit

help: ## list the targets
	@echo "Cleat: cloud disks for virtual machines. Targets:"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@echo "From nothing to a guest doing I/O: make demo. Before a commit: make lint test."

setup: ## install what is missing for everything here (Debian 12, 13); what less needs, the targets install
	@scripts/setup.sh

setup-build setup-demo setup-demo-ceph setup-bench setup-lint setup-unit: setup-%:
	@scripts/setup.sh --for $*

build: ## build the product into build/, binaries in build/bin/; installs nothing
	$(call build,release,product)

build-tests: ## build what `ctest --test-dir build` runs
	$(call build,release,product tests,$(TESTS))

deb: setup-build build ## the Debian package of the release build and its debug symbols, in build/packages
	@! grep -qx 'CLEAT_EXAMPLE:BOOL=ON' build/CMakeCache.txt || \
	  { echo "make deb: build/ is for an example's disks, which no package has: cmake --preset release" >&2; exit 1; }
	@scripts/make_deb.sh build

test: setup ## set up, build, and test: release, then asan and fuzzing, then tsan
	@for part in release asan tsan; do $(MAKE) --no-print-directory build-$$part test-$$part || exit 1; done
	@echo "make test: ok"

build-release: build-tests
test-release:
	$(call run_tests,release)
build-asan:
	$(call build,asan,tests,$(TESTS))
test-asan:
	$(call run_tests,asan)
build-tsan:
	$(call build,tsan,tests,$(TESTS))
test-tsan:
	$(call run_tests,tsan)

test-all: setup ## everything, in at most three hours, and all of it even if something fails: docs/tests.md; BASE=COMMIT as below
	@failed=; \
	if [ "$(BASE)" != none ]; then \
	  CLEAT_BASE_BIN=$$(CLEAT_BASE_JOBS=$(JOBS) scripts/build_base.sh $(BASE)) || failed+=" base"; \
	  export CLEAT_BASE_BIN; \
	fi; \
	for part in release asan tsan; do \
	  $(MAKE) --no-print-directory TESTS=ALL build-$$part test-$$part || failed+=" $$part"; \
	done; \
	scripts/coverage.py || failed+=" coverage"; \
	$(MAKE) --no-print-directory lint LINT_ARGS=--all || failed+=" lint"; \
	[ -z "$$failed" ] || { echo "make test-all: failed, see above:$$failed" >&2; exit 1; }
	@echo "make test-all: ok"

test-upgrade: setup ## upgrades from an older version under load, and back: make test-upgrade BASE=COMMIT; without, the last release
	@scripts/build_base.sh $(BASE) >/dev/null
	$(call build,release,product system_test,ALL)
	@CLEAT_BASE_BIN=$$(scripts/build_base.sh $(BASE)) $(MAKE) --no-print-directory test-release CTEST_ARGS='-R system_older_version_test'

debian13: ## make demo and make test in a root of Debian 13, as root; needs mmdebstrap, takes an hour, says how long each took
	@scripts/in_debian.sh trixie make demo
	@scripts/in_debian.sh trixie make test

unit: $(if $(filter release,$(FLAVOUR)),setup-unit,setup) ## one folder's unit tests, and what they need: make unit DIR=virtio
	@[ -d "tests/unit/$(DIR)" ] && [ -n "$(DIR)" ] || { echo "make: DIR names a folder of tests/unit: make unit DIR=virtio" >&2; exit 1; }
	@scripts/configure.sh $(FLAVOUR) ON
	@[ -s $(call build_dir,$(FLAVOUR))/tests/unit_$(DIR).txt ] || { echo "make: tests/unit/$(DIR) has nothing to build in this flavour;" \
	  "the tests of scripts are 'ctest --test-dir build -L script'" >&2; exit 1; }
	@cmake --build --preset $(FLAVOUR) --parallel $(JOBS) --target unit_$(DIR)
	@while read -r program; do \
	  $(if $(filter release,$(FLAVOUR)),,$(SETARCH)) env $$program --gtest_brief=1 $(ARGS) </dev/null || exit 1; \
	done <$(call build_dir,$(FLAVOUR))/tests/unit_$(DIR).txt

soak: setup build-asan ## ten minutes of each fuzz target and of the random tests, fresh seeds; SOAK_SECONDS=10 for a trial
	$(call build,release,product tests,ALL)
	@$(SETARCH) /usr/bin/python3 -B scripts/soak.py --seconds $(SOAK_SECONDS)

bench: setup-bench ## measure against the bars and the peers, in 15 minutes: docs/benchmarks.md, build/bench/results.json
	$(call build,release,product benchmarks,ALL)
	@[ -f build-uncounted/build.ninja ] || cmake -S . -B build-uncounted -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DCLEAT_COUNTERS=OFF -DCLEAT_GRPC=OFF >/dev/null
	@cmake --build build-uncounted --parallel $(JOBS) --target cleat-engine
	@[ -f build-unhardened/build.ninja ] || cmake -S . -B build-unhardened -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DCLEAT_HARDENING=OFF -DCLEAT_DPDK=OFF -DCLEAT_GRPC=OFF -DCLEAT_RBD=OFF -DCLEAT_TESTS=ON >/dev/null
	@cmake --build build-unhardened --parallel $(JOBS) --target device_loop
	@/usr/bin/python3 -B scripts/bench/run.py $(BENCH_ARGS)

demo: setup-demo ## a guest that uses two disks: installs and builds only what that needs
	$(call build,release,$(DAEMONS))
	@/usr/bin/python3 scripts/demo.py

demo-crash: setup-demo ## kill the engine three times under a guest that verifies what it wrote; show the gaps
	$(call build,release,$(DAEMONS))
	@/usr/bin/python3 scripts/demo_crash.py

demo-upgrade: setup-demo ## exchange the engine under a guest that verifies what it wrote, and kill it beside its standby
	$(call build,release,$(DAEMONS))
	@/usr/bin/python3 scripts/demo_upgrade.py

demo-nvme: setup-demo ## an NVMe drive cut into disks, in a guest that has one; the engine killed and exchanged under load, a disk erased
	$(call build,release,$(DAEMONS) cleat-perf)
	@scripts/guest/make_image.sh nvme >/dev/null
	@/usr/bin/python3 -B scripts/demo_nvme.py

demo-nvmeof: known-transport setup-demo ## a guest on a namespace that two paths lead to: one is cut, the engine upgraded, then killed; the gaps; TRANSPORT=rdma for RDMA
	$(call build,release,$(DAEMONS) $(if $(filter rdma,$(TRANSPORT)),cleat-perf))
	@scripts/guest/make_image.sh $(if $(filter rdma,$(TRANSPORT)),rdma,nvme) >/dev/null
	@/usr/bin/python3 -B scripts/demo_nvmeof$(if $(filter rdma,$(TRANSPORT)),_rdma).py

known-transport:
	@case "$(TRANSPORT)" in tcp | rdma) ;; *) echo "make demo-nvmeof: TRANSPORT is tcp or rdma, not '$(TRANSPORT)'" >&2; exit 2 ;; esac

demo-export: setup-demo ## a guest that is the NVMe/TCP host of an exported disk, by two paths: one is cut, the engine upgraded, then killed; the gaps
	$(call build,release,$(DAEMONS))
	@scripts/guest/make_image.sh nvme >/dev/null
	@/usr/bin/python3 -B scripts/demo_export.py

demo-ceph: setup-demo-ceph ## a guest on encrypted disks in a Ceph cluster of its own, whose OSD stands still for a while
	$(call build,release,$(DAEMONS))
	@/usr/bin/python3 scripts/demo_ceph.py

test-nvme: setup-build ## try a real drive, which LOSES ALL ITS DATA; as root, asks first: make test-nvme DEVICE=/dev/disk/by-id/...
	@[ -n "$(DEVICE)" ] || { echo "make test-nvme: name the drive: make test-nvme DEVICE=/dev/disk/by-id/nvme-..." >&2; exit 2; }
	$(call build,release,$(DAEMONS) cleat-perf)
	@/usr/bin/python3 -B scripts/test_nvme_drive.py "$(DEVICE)"

lint: setup-lint ## formatting, clang-tidy, include directions, SPDX lines; builds only generated code
	$(call build,release,generated)
	@scripts/lint.sh $(LINT_ARGS)

format: ## format the C++ files in place
	@scripts/lint.sh --format

clean: ## remove everything that make has made; installed packages stay
	rm -rf build build-debug build-asan build-tsan build-coverage build-uncounted build-unhardened
