// Package holder describes what keeps memory alive: the objects of a program's own heap
// that refer to it, as one reading of that heap found them. It imports nothing of this
// module but the list of losses.
package holder

import "github.com/gpumemtrace/gpumemtrace/internal/model/loss"

// A Reading is what one reading of a process's heap found. Names in it are the
// program's own: an output shows them and never interprets them.
type Reading struct {
	Runtime   string `json:"runtime"`   // such as "CPython 3.12"
	Framework string `json:"framework"` // such as "PyTorch", "" if none was found
	// Refused says why the reading has no storages, "" if it may have some.
	Refused string `json:"refused,omitempty"`
	// Begin and End are CLOCK_MONOTONIC in nanoseconds.
	Begin uint64 `json:"begin_ns"`
	End   uint64 `json:"end_ns"`
	// Objects is how many objects of the heap were read.
	Objects uint64 `json:"objects"`
	// Storages are the pieces of memory that tensors lie in, by address, each once.
	Storages []Storage `json:"storages"`
	// Allocators are PyTorch's own tables of GPU memory, one for each GPU that it has memory of.
	Allocators []Allocator `json:"allocators,omitempty"`
	// NoAllocators says why Allocators is empty although the process has PyTorch, else "".
	NoAllocators string `json:"no_allocators,omitempty"`
	// Came is how many bytes of Allocators were allocated while the objects were read, and have no storage.
	Came uint64 `json:"came_bytes,omitempty"`
	// Modules are the modules of PyTorch that have a path, in the order of their addresses.
	Modules []Module `json:"modules,omitempty"`
	// Retainers are the objects that keep most. The first one is the most likely reason for
	// a leak, and no model or optimizer if another object keeps much.
	Retainers []Retainer `json:"retainers"`
	// Loss counts what could not be read, or what disagreed when it was read again.
	Loss []loss.Counter `json:"loss"`
}

// Devices that are no GPU.
const (
	CPU           = -1
	UnknownDevice = -2 // of an array of JAX
)

// A Role says what a storage is for, as far as the objects that hold it say so.
type Role uint8

const (
	NoRole         Role = iota // the heap does not say
	Parameter                  // in the registry of parameters of a module
	Buffer                     // in the registry of buffers of a module
	Gradient                   // the grad of a tensor
	OptimizerState             // in the state of an optimizer
	Activation                 // saved by a node of an autograd graph
)

// A Module is an object of torch.nn.Module.
type Module struct {
	Address uint64 `json:"address"`
	// Path is what a programmer would write, such as model.layers[3]. It does not say in
	// which function a local variable is.
	Path string `json:"path"`
	// Training is what module.train() and module.eval() set. Checkpoints says that its attribute
	// gradient_checkpointing is true.
	Training    bool `json:"training"`
	Checkpoints bool `json:"checkpoints,omitempty"`
}

// A Storage is one piece of memory that one or more tensors lie in.
type Storage struct {
	Address uint64 `json:"address"` // 0 for an array of JAX: it is not known
	Bytes   uint64 `json:"bytes"`
	Device  int32  `json:"device"` // CUDA ordinal inside the process, CPU or UnknownDevice
	Role    Role   `json:"role"`
	// Holder is the path that a programmer would write to the tensor, such as
	// model.layers[3].weight, and More are paths of other holders, of which there are
	// Holders in all.
	Holder  string   `json:"holder"`
	More    []string `json:"more,omitempty"`
	Holders int      `json:"holders"`
	// Module is the path to the module that the tensor belongs to: that of a parameter, of a
	// buffer or of another attribute, and the parameter's of a gradient or of what an
	// optimizer has for it.
	Module string `json:"module,omitempty"`
	// Tensors is how many tensors lie in the storage. Shape, DType, Class and
	// RequiresGrad are those of the one that Holder names. If this one only wraps another
	// tensor, as a DTensor does, Shape is that of the other one.
	Tensors      int     `json:"tensors"`
	Shape        []int64 `json:"shape"`
	DType        string  `json:"dtype"`
	Class        string  `json:"class"`
	RequiresGrad bool    `json:"requires_grad"`
	// Node is the node of an autograd graph that saved the tensor, such as
	// "MulBackward0", "" if none did or its name is not known.
	Node string `json:"node,omitempty"`
	// Cycle: only objects that refer to each other hold it, which the program cannot
	// reach any more. It is freed when the garbage collector runs. Stuck is one that is not.
	Cycle bool `json:"cycle,omitempty"`
}

// A Retainer is one object and what would be freed if nothing referred to it any more.
type Retainer struct {
	Holder string `json:"holder"` // the path to it
	Class  string `json:"class"`  // such as "list"
	Items  int    `json:"items"`  // of a container, else 0
	// Retained is all that only this object keeps, in bytes. Graph is the part of it
	// that autograd graphs keep.
	Retained uint64 `json:"retained_bytes"`
	Graph    uint64 `json:"graph_bytes"`
	Storages int    `json:"storages"` // how many storages Retained is
}
