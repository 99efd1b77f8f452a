// Package heap reads the heap of a Python program from outside, while the program
// runs: its objects, the tensors among them, and who holds those. Nothing in the
// program is stopped, written or probed.
//
// Whatever is read may be forged, and changes meanwhile. Each read, list and count has
// a bound, nothing recurs, and what disagrees is counted as a loss. Values are never
// read: only types, names of attributes, keys, and the numbers that describe a tensor.
//
// readHeap shows the order. A listReader finds the objects, an objectReader reads one,
// references are what all of them refer to, and a graph says who holds which tensor.
package heap

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// Options say how a heap is read.
type Options struct {
	// Keys says which keys of dictionaries are shown.
	Keys Keys
	// CPU: what an object keeps includes tensors in the CPU's memory.
	CPU bool
	// Pause stops the program while its heap is read. It goes on whatever happens to
	// this process.
	Pause bool
	// Bounds of one reading, 0 for the usual ones.
	MaxObjects int
	MaxBytes   int64
	MaxTime    time.Duration
}

// Keys says which keys of dictionaries paths show: a key may be a secret.
type Keys uint8

// Choices of keys.
const (
	NamedKeys Keys = iota // identifiers and integers
	AllKeys               // and short plain strings
	NoKeys
)

// KeyChoices has the choices by the words that people use.
var KeyChoices = []string{NamedKeys: "names", AllKeys: "all", NoKeys: "none"}

// The usual bounds.
const (
	defaultObjects = 4 << 20
	defaultBytes   = 8 << 30
	defaultTime    = 20 * time.Second
)

var losses loss.Causes

var (
	listsCut         = losses.Add("heap_lists_cut", "lists of the garbage collector that could not be followed to their end")
	objectsGone      = losses.Add("heap_objects_gone", "objects of the heap that were gone when they were read")
	objectsLimit     = losses.Add("heap_objects_limit", "readings of a heap that has more objects than are read at most")
	objectsUnread    = losses.Add("heap_objects_unread", "objects whose references were not read because a limit was reached")
	containersCut    = losses.Add("heap_containers_cut", "containers that changed while they were read")
	containersForged = losses.Add("heap_containers_forged", "containers that claim to have more elements than a container can have")
	modulesLimit     = losses.Add("heap_modules_limit", "readings of a heap that has more PyTorch modules than get a name")
	tensorsUnfit     = losses.Add("heap_tensors_unfit", "tensors and arrays whose parts contradicted each other when they were read")
)

// Read reads the heap of a process. A bug of ours that some memory meets is an error, and does not end the trace.
func Read(ctx context.Context, pid int, o Options) (reading *holder.Reading, err error) {
	defer func() {
		if p := recover(); p != nil {
			reading, err = nil, fmt.Errorf("a bug in reading heaps, please report it: %v\n%s", p, debug.Stack())
		}
	}()
	if !proc.Numbered() {
		return nil, errors.New("/proc is of another PID namespace than this process: mount the one of its own")
	}
	begin := uint64(clock.Monotonic())
	runtime, err := FindRuntime(pid)
	if err != nil {
		return nil, err
	}
	var unfound error
	if runtime.Allocator, unfound = FindAllocator(pid); runtime.Allocator != 0 {
		runtime.workspaces = func() []uint64 { return findWorkspaces(pid) }
	}
	if o.Pause {
		resume, err := pauseProcess(pid)
		if err != nil {
			return nil, err
		}
		defer resume()
	}
	reading, err = ReadMemory(ctx, processMemory(pid), runtime, o)
	if reading != nil {
		if unfound != nil {
			reading.NoAllocators = unfound.Error()
		}
		dropInherited(pid, reading)
		reading.Begin, reading.End = begin, uint64(clock.Monotonic())
	}
	return reading, err
}

// ReadMemory reads a heap whose runtime was found. It does not set the times of the
// reading.
func ReadMemory(ctx context.Context, m Memory, runtime Runtime, o Options) (*holder.Reading, error) {
	if o.MaxObjects <= 0 {
		o.MaxObjects = defaultObjects
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = defaultBytes
	}
	if o.MaxTime <= 0 {
		o.MaxTime = defaultTime
	}
	reading := &holder.Reading{Runtime: fmt.Sprintf("CPython 3.%d", runtime.Minor)}
	lay, ok := layouts[runtime.Minor]
	if !ok {
		reading.Refused = fmt.Sprintf("heaps of CPython 3.%d are not known; those of 3.8 to 3.14 are", runtime.Minor)
		if runtime.Minor == 0 {
			reading.Runtime, reading.Refused = "CPython", "this CPython does not say its version"
		}
		return reading, nil
	}
	mem := newCache(m, o.MaxBytes, time.Now().Add(o.MaxTime))
	if err := mem.open(); err != nil {
		return nil, err
	}
	defer mem.release()
	mem.done = ctx.Done()
	r := newObjectReader(mem, &lay, runtime.Address)
	defer r.arena.release()
	reading.Refused = readHeap(r, &o, &runtime, reading)
	if r.mem.stopped != nil && reading.Refused == "" {
		reading.Refused = "the heap was not read to its end: " + r.mem.stopped.Error()
		reading.Storages, reading.Retainers, reading.Modules, reading.Allocators = nil, nil, nil, nil
	}
	reading.Loss = r.lost.Counters()
	return reading, ctx.Err()
}

// readHeap reads all objects and their references, and what follows from them. why says
// why it could not.
func readHeap(r *objectReader, o *Options, runtime *Runtime, reading *holder.Reading) (why string) {
	allocator := runtime.Allocator
	if r.lay.minor >= 13 {
		if err := r.lay.adopt(r.mem, r.runtime); err != nil {
			return err.Error()
		}
	}
	interpreters := r.interpreters()
	if len(interpreters) == 0 {
		return "the process has no interpreter, or its memory may not be read"
	}
	var before map[uint64]uint64
	if allocator != 0 {
		resume := r.mem.part(allocatorShare)
		all, _ := readAllocator(r.mem, &cppReader{mem: r.mem, vtables: map[uint64]string{}}, allocator, 1, loss.New(losses))
		before = sizesOf(all)
		resume()
	}
	lists := listReader{objectReader: r, interpreters: interpreters, most: o.MaxObjects}
	found := lists.find()
	r.mem.shrink(edgeSlots)
	objects := r.newObjects(found)
	drop(r.arena, found)
	reading.Objects = uint64(len(objects.address))
	if len(objects.address) == 0 {
		return "no objects were found: this may be another build of CPython"
	}
	var torch *torchLayout
	count := 0
	if tensors := r.ofShape(&objects, shapeTensor); len(tensors) > 0 {
		count = len(tensors)
		reading.Framework = "PyTorch"
		if torch, why = r.findTorch(tensors); why != "" {
			return why
		}
	}
	refs := newReferences(r, objects, torch, count, o.Keys)
	refs.gather()
	refs.threads(interpreters)
	refs.gatherExtras()
	refs.confirmStorages()
	free := refs.keptFree()
	if allocator != 0 { // blocks lie wherever malloc had room: a small cache would read them again and again
		resume := r.mem.part(allocatorShare)
		reading.Allocators, reading.NoAllocators = readAllocator(r.mem, &refs.cpp, allocator, allocatorRounds, r.lost)
		resume()
	}
	r.mem.shrink(nameSlots)
	if reading.Framework == "" {
		reading.Framework = refs.framework
	}
	if len(refs.storages) > 0 {
		newGraph(refs).analyze(reading, o.CPU)
	}
	addNameless(reading, before)
	nameWorkspaces(r.mem, runtime.workspaces, reading)
	addFree(reading, free)
	return ""
}
