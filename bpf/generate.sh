#!/bin/sh
# Builds the programs. The unwinder's include C sources of the unwinder from the module cache,
# at the version that go.mod names. Objects are compressed to a quarter of their size.
set -eu
go mod download go.opentelemetry.io/ebpf-profiler
module=$(go list -m -f '{{.Dir}}' go.opentelemetry.io/ebpf-profiler)
build() {
	name=$1 source=$2
	shift 2
	go run github.com/cilium/ebpf/cmd/bpf2go -no-global-types \
		-cc "${CLANG:-clang-19}" -strip "${LLVM_STRIP:-llvm-strip-19}" \
		-target amd64,arm64 "$name" "$source" -- \
		-O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter \
		-Wno-missing-declarations "$@"
}
build Gpumemtrace gpumemtrace.bpf.c
build Unwind unwind.bpf.c -Wno-sign-compare -isystem "$module/support/ebpf" "-ffile-prefix-map=$module=ebpf-profiler"
for object in *_bpfel.o; do
	gzip -9nf "$object"
	sed -i -e "s/^\(.*go:embed $object\)$/\1.gz/" -e 's/bytes\.NewReader(/unpacked(/' -e '/^\t"bytes"$/d' "${object%.o}.go"
done
