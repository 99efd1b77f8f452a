#!/bin/sh
# Builds the unwinder's programs, which include C sources of the unwinder from the
# module cache, at the version that go.mod names.
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
build Unwind unwind.bpf.c -mcpu=v3 -isystem "$module/support/ebpf" "-ffile-prefix-map=$module=ebpf-profiler"
