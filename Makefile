# `make help` lists the targets. Everything but build, lint and cross wants root:
# probes are real, on the real kernel.

PREFIX ?= /usr/local
GO     ?= go

VERSION := $(shell scripts/version)
LDFLAGS := -X main.version=$(VERSION)
# gRPC comes with what the unwinder needs, and is not used. Its tracing would keep every
# exported method of every type in the program: a fifth of it.
TAGS := grpcnotrace
CHECKED := ./pprofout ./internal/output/pprof ./internal/model/... ./internal/output/export/... ./internal/output/holders ./internal/output/memoryviz ./internal/output/pickle ./internal/whatif/... ./internal/heap/holder ./internal/top ./internal/live ./internal/render ./internal/bytefmt ./internal/agent/alert ./internal/agent/leaks ./internal/agent/push ./internal/agent/metrics ./internal/agent/settings
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# go-nvml leaves NVML's functions undefined until it has loaded the library, so
# they must be bound on first use. Some distributions' gcc binds all at start.
export CGO_LDFLAGS ?= -O2 -g
override CGO_LDFLAGS += -Wl,-z,lazy

# What is run, where make may install it: COMMAND=PACKAGE, FILE=PACKAGE or a Debian package.
BUILD_TOOLS    := gcc=gcc /usr/include/stdio.h=libc6-dev
TEST_TOOLS     := $(BUILD_TOOLS) g++=g++ strip=binutils python3=python3 rustc=rustc clang-19=clang-19 chromium=chromium tmux=tmux prometheus=prometheus promtool=prometheus systemd-analyze=systemd python3-torch libpython3-dev
# Compilers for both architectures (FOREIGN is the one that this machine is not), and
# what of Debian goes into the image.
FOREIGN        := $(if $(filter aarch64,$(shell uname -m)),x86_64-linux-gnu/gcc-x86-64-linux-gnu/libc6-dev-amd64-cross,aarch64-linux-gnu/gcc-aarch64-linux-gnu/libc6-dev-arm64-cross)
foreign        = $(word $(1),$(subst /, ,$(FOREIGN)))
DIST_TOOLS     := readelf=binutils $(call foreign,1)-gcc=$(call foreign,2) /usr/$(call foreign,1)/include/stdio.h=$(call foreign,3) /usr/share/ca-certificates/mozilla=ca-certificates
GENERATE_TOOLS := $(BUILD_TOOLS) clang-19=clang-19 llvm-strip-19=llvm-19

# Never from the cache: it does not know the kernel.
# The limit, of each package, is reached by what hangs only.
TEST_FLAGS ?= -count 1 -timeout 40m -vet off
FUZZ_TIME  ?= 10s
BENCH      ?= .
# A version of Debian's, several of which the first that can be had is taken, or the
# path of a bzImage.
KERNELS    ?= 6.1 6.12 6.19,6.18 newest
ARCH       ?= amd64

.DEFAULT_GOAL := help
.PHONY: help build install dist test tests tests-tracing tests-others tests-untraced race check soak demo test-gpu test-kernels test-stores lint cross generate check-generate fuzz bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/gpumemtrace, which takes minutes the first time
	@WHAT='go builds bin/gpumemtrace' EVERY=10 scripts/progress env CGO_ENABLED=1 $(GO) build -trimpath -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/gpumemtrace ./cmd/gpumemtrace

dist: ## build the packages in dist/: tarballs, .deb, .rpm, an OCI image, for amd64 and arm64, and archives for macOS and Windows
	scripts/install-tools $(BUILD_TOOLS) $(DIST_TOOLS)
	TAGS='$(TAGS)' scripts/dist $(DIST)

install: build ## install it, with its manual pages, under PREFIX (/usr/local)
	install -D -m 0755 bin/gpumemtrace '$(DESTDIR)$(PREFIX)/bin/gpumemtrace'
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) $(GO) run -tags 'man,$(TAGS)' -ldflags '$(LDFLAGS)' ./cmd/gpumemtrace bin/manual
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/share/man/man1' bin/manual/man1/*.1

# Those that run the stand-in for CUDA, one at a time: the probes of one package's tests would
# see what another's start.
TRACING := bpf cmd/gpumemtrace internal/doctor internal/source/session internal/testing/testcuda probes test/vm/checks
without = $$($(GO) list ./... | grep -vE "/($$(echo $(1) | tr ' ' '|'))$$")
# Those that start a goroutine or have something for several of them. (What cmd and bpf have is
# tested by programs as users run them.)
SHARING = $$(grep -rlE '^\s*go [a-z]|"sync' --include '*.go' --exclude '*_test.go' --exclude-dir testing internal probes symbolize | xargs -n 1 dirname | sort -u | sed 's,^,./,')
# Tests of the command that trace nothing.
UNTRACED := ^Test(Corpus|Check.*|Hostile(Profiles|Recordings|Commands)|Documents.*|Holders.*|Fit.*|Usage|DiffOfRuns|ConvertShows.*|ReportFrom|PageOfFailures|OutOfMemoryTwice|WhatWouldHaveHelped|WindowsOfRecording)$$
# Compiles packages and their tests, and links nothing. Less garbage collection makes that a
# quarter faster.
compile := list -test -export -f ''

test: ## run every test
	@scripts/progress $(MAKE) --no-print-directory tests

tests:
	scripts/install-tools $(BUILD_TOOLS)
	scripts/install-tools $(TEST_TOOLS) & GOGC=400 $(GO) $(compile) ./... >/dev/null; built=$$?; wait $$! && exit $$built
	$(MAKE) --no-print-directory -j 3 tests-tracing tests-others tests-untraced

tests-tracing:
	$(GO) test $(TEST_FLAGS) -p 1 -skip '$(UNTRACED)' $(TRACING:%=./%)

# What traces runs one after another and waits often. The rest takes the time that it leaves.
tests-others:
	nice -n 5 $(GO) test $(TEST_FLAGS) $(call without,$(TRACING))

tests-untraced:
	nice -n 5 $(GO) test $(TEST_FLAGS) -run '$(UNTRACED)' ./cmd/gpumemtrace

race: ## run the tests of what several goroutines share with the race detector, but for what only takes long
	scripts/install-tools $(BUILD_TOOLS) $(TEST_TOOLS)
	$(GO) test $(TEST_FLAGS) -p 1 -race -short $(SHARING)

# What go's cache has is not run again.
check: ## run go vet, and the tests that need neither root nor a kernel nor a browser, in a minute: for every edit
	@scripts/install-tools $(BUILD_TOOLS)
	$(GO) vet ./...
	$(GO) test -short -vet off $(CHECKED)

soak: ## see that nothing grows: where very much comes and goes, in a crowd, and of an agent for ten minutes (SOAK_TIME) among all that may go wrong
	scripts/install-tools $(BUILD_TOOLS)
	$(GO) test -tags soak -run 'TestChurn|TestCrowd|TestSoak|TestStrangers' -count 1 -timeout 30m -p 1 -v ./internal/source/session ./test/soak

demo: ## trace a training job, then make the report and the page of a recording of a real GPU
	scripts/install-tools $(BUILD_TOOLS)
	$(MAKE) --no-print-directory build
	scripts/demo

test-gpu: ## run the cases that need an NVIDIA GPU
	test/gpu/run.sh

test-kernels: ## boot other kernels (KERNELS, ARCH=arm64) and run the checks of test/vm on each
	test/vm/run.sh -a $(ARCH) $(KERNELS)

# In a module of its own, so that the program does not depend on a collector. To compile
# that takes two minutes the first time.
test-stores: ## push recordings to an OpenTelemetry collector
	cd test/stores && $(GO) test -count 1 ./...

lint: ## run the linters and check which package may import which
	$(GO) run $(GOLANGCI_LINT) run

# The files alone are checked, because tests of the command need Linux.
cross: build ## check that it builds without cgo and for arm64, that what reads files does for macOS and Windows, and that NVML is bound lazily
	! readelf -d bin/gpumemtrace | grep -w -e NOW -e BIND_NOW
	GOARCH=amd64 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/gpumemtrace
	GOARCH=arm64 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/gpumemtrace
	set -e; export CGO_ENABLED=0; for GOOS in darwin windows; do export GOOS; \
		$(GO) build -o /dev/null ./cmd/gpumemtrace; \
		$(GO) vet ./internal/atomicfile ./internal/agent/oomdir; \
		$(GO) vet $$($(GO) list -f '{{range .GoFiles}}{{$$.Dir}}/{{.}} {{end}}' ./cmd/gpumemtrace); done

generate: ## compile the BPF programs (clang-19)
	scripts/install-tools $(GENERATE_TOOLS)
	$(GO) mod download go.opentelemetry.io/ebpf-profiler
	$(GO) generate ./bpf

check-generate: generate ## compile them and fail if that changes what is committed
	git diff --exit-code --stat -- bpf
	@test -z "$$(git status --porcelain -- bpf)" || { git status --short -- bpf; exit 1; }

fuzz: ## run each fuzz test for FUZZ_TIME (10s), and each random test with a new seed
	scripts/fuzz $(FUZZ_TIME)

bench: ## run the benchmarks whose name matches BENCH
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

clean: ## remove what was built
	rm -rf bin dist
