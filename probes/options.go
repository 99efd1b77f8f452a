package probes

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

// API selects the level of CUDA's API to count.
type API string

const (
	APIDriver  API = "driver"  // libcuda: every byte, whatever runtime asked for it
	APIRuntime API = "runtime" // libcudart alone
	APIBoth    API = "both"    // libcuda, and events name the runtime call around them
)

// Options configure a Tracer.
type Options struct {
	API    API
	All    bool // trace every process, now and later
	Follow bool // trace the children of targets too
	// Ahead: probe the CUDA libraries that a program started now would load.
	Ahead bool
	// Kernel: trace the calls that libcuda makes to the kernel driver too. It has no effect
	// with APIRuntime, whose functions do not show the purpose of such a call.
	Kernel bool
	// Tensors: trace PyTorch's caching allocator too.
	Tensors bool
	// Windows: the probes on tensors are on in windows only, which OpenWindow begins. Private pools
	// are not seen.
	Windows bool
	// FreeStacks: a tensor's free has a stack too.
	FreeStacks bool
	// Warn receives sentences for the user, each of them once. It may be called from any
	// goroutine. nil drops them.
	Warn func(string)
	// Stacks, if set, replaces this package's own return program, which follows frame
	// pointers.
	Stacks StackTaker
	// Meter, if set, measures the processor time of reading events, as work for no user, and
	// of the other work for each user, by the user's place (Tracer.UserOf).
	Meter *work.Meter

	change      func(*ebpf.CollectionSpec) // changes the kernel side before it is loaded, unless nil
	attachments int                        // libraries probed at one time; 0 for maxAttachments
	attach      func() ebpf.AttachType     // how to attach probes; nil for attachType
}

// A StackTaker takes call stacks in the kernel. The goroutines that read events call its
// methods, which must not wait, except Load and Drain.
type StackTaker interface {
	// Load returns the program to run when a function returns, nil to follow frame
	// pointers. It gets the kernel side's maps and constants by name, the way in which the
	// program will be attached, and the kernel's types. Other programs load at the same time.
	Load(maps map[string]*ebpf.Map, constants map[string]any, attach ebpf.AttachType, types *btf.Cache) (*ebpf.Program, error)
	// Mapped reports a new executable mapping of a traced process. cuda says that it is a
	// library of CUDA or PyTorch.
	Mapped(pid int, m proc.Mapping, cuda bool)
	// Forked reports that child is traced and began with the mappings of parent.
	Forked(parent, child int)
	// Replaced reports that pid replaced its image.
	Replaced(pid int)
	// Ended reports that pid has ended.
	Ended(pid int)
	// Drain waits until the stacks of all events so far have been sent, for a bounded time.
	Drain()
}

// constants returns the values of the programs' constants, by name.
func (o *Options) constants(attach ebpf.AttachType) (map[string]any, error) {
	ns, err := proc.Namespace("pid")
	if err != nil {
		return nil, err
	}
	if ns == proc.InitialPID {
		ns = 0 // the kernel side then translates no PIDs
	}
	b := map[bool]uint32{true: 1}
	return map[string]any{
		"cfg_pidns_inum": ns, "cfg_all": b[o.All], "cfg_follow": b[o.Follow], "cfg_session": b[attach == attachSession],
		"cfg_free_stacks": b[o.FreeStacks],
	}, nil
}

// levels returns the levels of the libraries to probe.
func (o *Options) levels() (out []Level) {
	for _, x := range []struct {
		level  Level
		wanted bool
	}{
		{Driver, o.API != APIRuntime}, {Runtime, o.API == APIRuntime || o.API == APIBoth},
		{Torch, true}, {TorchCUDA, o.Tensors && !o.Windows}, {Vendor, o.watchesKernel()},
	} {
		if x.wanted {
			out = append(out, x.level)
		}
	}
	return out
}

func (o *Options) watchesKernel() bool { return o.Kernel && o.API != APIRuntime }

// class returns the class of the i-th of Entries.
func (o *Options) class(i int) class {
	if Entries[i].Level == Runtime && o.API == APIBoth {
		return classAround
	}
	return Entries[i].class
}

// wants reports whether a row has probes for the whole trace.
func (o *Options) wants(r *Row) bool {
	return lasting(r) && (o.watchesKernel() || !r.imported()) && (o.Tensors || r.class != classTensor)
}

// confined reports whether each probe is for one process alone.
func (o *Options) confined() bool { return !o.Follow && !o.All && pidFilterWorks() }

// confinedTo returns the process that the probes for pid are confined to, 0 for none.
func (o *Options) confinedTo(pid int) int {
	if o.confined() {
		return pid
	}
	return 0
}
