// Package gpu says what NVML knows of GPUs and of the memory that processes
// hold on them, and reconciles it with what was traced.
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
// not show it. What stays open is absent, never guessed.
//
// # Reconciliation
//
// For one process on one GPU, at each moment:
//
//	NVML = tracked + rounding + [allocated before attach] + [cuda context and driver]
//
// NVML, tracked and rounding are read, so the last two are one residual that
// must be split:
//
//   - traced from its start, nothing was allocated before: the residual is
//     context and driver;
//   - attached late, the first residual is before-attach plus context. The
//     context's size is not observable then. With a size from elsewhere
//     (another process on the same model, or the user) the split is that
//     estimate, marked as inferred. Without one all of it is the before-attach
//     line, whose Note says that it includes the context;
//   - afterwards, a residual that falls while frees of unseen addresses were
//     counted shrinks before-attach, to no less than zero; every other change
//     is context and driver (modules, local memory, graphs).
//
// Nothing is clamped: a line may be negative, which is reported in Statement's
// Negative and means that reads raced, events were lost, or a device was
// mistaken. Managed memory is in none of the lines: NVML does not count it for
// a process, touched on the GPU or not. A stream-ordered pool's unused reserve
// is part of context and driver.
package gpu
