#!/bin/sh
# Builds the unwinder's programs. The chain includes the unwinder's C sources
# from the module cache, at the version that go.mod names, and is built for
# -mcpu=v2: with v3 the verifier gives up on it after a million instructions.
set -eu
go mod download go.opentelemetry.io/ebpf-profiler
module=$(go list -m -f '{{.Dir}}' go.opentelemetry.io/ebpf-profiler)
build() {
	name=$1 source=$2
	shift 2
	go run github.com/cilium/ebpf/cmd/bpf2go -no-global-types \
		-cc "${CLANG:-clang-19}" -strip "${LLVM_STRIP:-llvm-strip-19}" \
		-target amd64,arm64 "$name" "$source" -- \
		-O2 -g -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter \
		-Wno-missing-declarations -Wno-sign-compare "$@"
}
build UnwindExit unwind_exit.bpf.c -mcpu=v3
build Unwind unwind.bpf.c -mcpu=v2 -isystem "$module/support/ebpf" "-ffile-prefix-map=$module=ebpf-profiler"
