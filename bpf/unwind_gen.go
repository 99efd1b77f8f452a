package bpf

//go:generate sh unwind_gen.sh
