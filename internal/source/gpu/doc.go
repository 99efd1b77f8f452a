// Package gpu says what NVML knows of GPUs and of the memory that processes hold on
// them. Here the driver is NVIDIA's kernel driver, whose figures NVML tells.
//
// It is the only package that uses cgo. Built with CGO_ENABLED=0 it has the
// same API, and Open returns ErrNoCgo. A binary with cgo must not be linked
// with -z now (nor run with LD_BIND_NOW=1): go-nvml leaves NVML's symbols
// unresolved until the library is loaded. For the same reason a call of a
// symbol that an old library lacks would end the process, so each is looked up
// first and reported as ErrMissing.
//
// # Processes
//
// NVML names processes by pid. The driver (580 here) translates pids into the
// PID namespace of whoever asks and leaves out those that have none there;
// older ones report the host's pids everywhere. A pid is believed when we are
// in the initial PID namespace, or when every pid listed for a GPU is a process
// here that has the GPU's device file open. Else a figure is "not known", or,
// when only one process can be meant, marked as inferred.
//
// # Ordinals
//
// CUDA numbers the GPUs a process may use from 0. Ordinals works that out from
// the environment as libcuda does (each rule was read off driver 580 with two
// H200s, see the test); Resolve weighs it against what the process did, since
// a program may set CUDA_VISIBLE_DEVICES for itself and /proc/PID/environ does
// not show it. An ordinal that is not certain is left out, never guessed.
package gpu
