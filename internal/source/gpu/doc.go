// Package gpu reads from NVML which GPUs there are and how much memory each process holds on them. In this
// package "the driver" is NVIDIA's kernel driver, whose figures NVML returns.
//
// It is the only package that uses cgo. With CGO_ENABLED=0 it has the same API, and Open returns ErrNoCgo.
// A binary with cgo must not be linked with -z now, nor run with LD_BIND_NOW=1, because go-nvml leaves
// NVML's symbols unresolved until it loads the library. A call of a symbol that an old library lacks would
// end the process. So this package looks each symbol up first, and returns ErrMissing.
//
// # Processes
//
// NVML names processes by PID. Driver 580 translates PIDs into the caller's PID namespace, and leaves out
// processes without a PID there. Older drivers return the host's PIDs everywhere. This package trusts the
// PIDs in the initial PID namespace, and elsewhere if every PID of a GPU belongs to a process here that has
// the GPU's device file open. Otherwise a figure is "not known", or, if only one process is possible,
// marked as inferred.
//
// # Ordinals
//
// CUDA numbers the GPUs that a process may use from 0. Ordinals computes these numbers from the environment
// as libcuda does. (Each rule was observed with driver 580 and two H200s, see the test.) Resolve compares
// them with the process's behaviour, since a program may set CUDA_VISIBLE_DEVICES for itself, which
// /proc/PID/environ does not show. An uncertain ordinal is left out.
package gpu
