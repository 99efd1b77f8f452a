# `make help` lists the targets. Everything but build, lint and cross wants root:
# probes are real, on the real kernel.

PREFIX ?= /usr/local
GO     ?= go

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X main.version=$(VERSION)
# What must work on any machine, without root: records in, figures out.
PURE := ./internal/state/... ./internal/record/... ./internal/stacks/... ./internal/account/... ./internal/ledger/... ./internal/physical/... ./internal/leak/...
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# go-nvml leaves NVML's functions undefined until it has loaded the library, so
# they must be bound on first use. Some distributions' gcc binds all at start.
export CGO_LDFLAGS ?= -O2 -g
override CGO_LDFLAGS += -Wl,-z,lazy

# What is run, where make may install it: COMMAND=PACKAGE, FILE=PACKAGE or a Debian package.
BUILD_TOOLS    := gcc=gcc /usr/include/stdio.h=libc6-dev
TEST_TOOLS     := $(BUILD_TOOLS) g++=g++ strip=binutils python3=python3 rustc=rustc clang-19=clang-19 python3-torch
GENERATE_TOOLS := $(BUILD_TOOLS) clang-19=clang-19 llvm-strip-19=llvm-19

# One package at a time: tests count the probes that the whole machine has, and
# what a probe costs. Never from the cache: it does not know the kernel.
TEST_FLAGS ?= -p 1 -count 1 -timeout 8m
FUZZ_TIME  ?= 10s
BENCH      ?= .
# A version of Debian's, several of which the first that can be had is taken, or the
# path of a bzImage.
KERNELS    ?= 6.1 6.12 6.19,6.18 newest
ARCH       ?= amd64

.DEFAULT_GOAL := help
.PHONY: help build install test demo test-gpu test-kernels lint cross generate check-generate fuzz bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/gpumemtrace
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/gpumemtrace ./cmd/gpumemtrace

install: build ## install it under PREFIX (/usr/local)
	install -D -m 0755 bin/gpumemtrace '$(DESTDIR)$(PREFIX)/bin/gpumemtrace'

# What is for one goroutine has no races to look for.
SINGLE := event ledger physical account stacks leak

test: ## run go vet and every test, then those of several goroutines with the race detector
	scripts/install-tools $(TEST_TOOLS)
	$(GO) vet ./...
	$(GO) test $(TEST_FLAGS) ./...
	$(GO) test $(TEST_FLAGS) -race -short $$($(GO) list ./... | grep -vE "/internal/($$(echo $(SINGLE) | tr ' ' '|'))$$")

demo: ## trace a training job and print the top of its profile
	scripts/install-tools $(BUILD_TOOLS)
	$(MAKE) --no-print-directory build
	scripts/demo

test-gpu: ## run the cases that need an NVIDIA GPU
	test/gpu/run.sh

test-kernels: ## boot other kernels (KERNELS, ARCH=arm64) and run the checks of test/vm on each
	test/vm/run.sh -a $(ARCH) $(KERNELS)

lint: ## run the linters and check which package may import which
	$(GO) run $(GOLANGCI_LINT) run

cross: build ## check that it builds without cgo and for arm64, that the state does for any system, and that NVML is bound lazily
	! readelf -d bin/gpumemtrace | grep -w -e NOW -e BIND_NOW
	GOARCH=amd64 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/gpumemtrace
	GOARCH=arm64 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/gpumemtrace
	GOOS=darwin CGO_ENABLED=0 $(GO) vet $(PURE)

generate: ## compile the BPF programs (clang-19)
	scripts/install-tools $(GENERATE_TOOLS)
	$(GO) mod download go.opentelemetry.io/ebpf-profiler
	$(GO) generate ./bpf

check-generate: generate ## compile them and fail if that changes what is committed
	git diff --exit-code --stat -- bpf
	@test -z "$$(git status --porcelain -- bpf)" || { git status --short -- bpf; exit 1; }

fuzz: ## run each fuzz test for FUZZ_TIME (10s)
	scripts/fuzz $(FUZZ_TIME)

bench: ## run the benchmarks whose name matches BENCH
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

clean: ## remove what was built
	rm -rf bin dist
