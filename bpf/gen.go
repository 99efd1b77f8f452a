// Package bpf holds the kernel side: the C sources, the Go that bpf2go made of
// them, and the compiled objects, which are committed so that building needs no
// clang. The C sources and objects are GPL-2.0 (see LICENSE here); the rest of
// the module embeds the objects as data.
package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -no-global-types -cc clang-19 -strip llvm-strip-19 -target amd64,arm64 Gpumemtrace gpumemtrace.bpf.c -- -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function -Wno-missing-declarations -mcpu=v3
//go:generate sh unwind_gen.sh
