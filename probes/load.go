package probes

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

const (
	enterProgram = "gm_call_enter"
	exitProgram  = "gm_call_exit" // where no StackTaker has one
	// startsProgram iterates over processes (Tracer.Identify).
	startsProgram = "gm_starts"
)

// lifePrograms are those of raw tracepoints, by tracepoint.
var lifePrograms = map[string]string{
	"sched_process_fork": "gm_fork", "sched_process_exec": "gm_exec", "sched_process_exit": "gm_exit",
}

// load loads the kernel side: first its maps, then its programs and those of the taker
// of stacks, side by side. Nearly all of it is the verifier's time.
func (t *Tracer) load() error {
	spec, err := bpf.LoadGpumemtrace()
	if err != nil {
		return fmt.Errorf("read the kernel side: %w", err)
	}
	choose := t.opts.attach
	if choose == nil {
		choose = attachType
	}
	attach := choose()
	constants, err := t.constants(attach)
	if err != nil {
		return err
	}
	for name, v := range constants {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("configure the kernel side: %w", err)
		}
	}
	if t.opts.ringBytes != 0 {
		spec.Maps["events"].MaxEntries = t.opts.ringBytes
	}
	if t.opts.TensorSample != 0 {
		spec.Maps["samples"].MaxEntries = cmp.Or(t.opts.samples, maxSamples)
	}
	if t.opts.allocators != 0 {
		spec.Maps["allocators"].MaxEntries = t.opts.allocators
	}
	// All that share a program array are of one kind (bpf_prog_map_compatible).
	spec.Programs[enterProgram].AttachType = attach
	spec.Programs[exitProgram].AttachType = attach
	types := btf.NewCache()

	own := &ebpf.CollectionSpec{Maps: maps.Clone(spec.Maps), Types: spec.Types, ByteOrder: spec.ByteOrder}
	maps.DeleteFunc(own.Maps, func(name string, _ *ebpf.MapSpec) bool { return strings.HasPrefix(name, ".") }) // constants
	if t.coll, err = ebpf.NewCollection(own); err != nil {
		return fmt.Errorf("load the kernel side: %w", err)
	}
	var exit *ebpf.Program
	var exitErr error
	var all sync.WaitGroup
	all.Go(func() {
		if t.opts.Stacks != nil {
			exit, exitErr = t.opts.Stacks.Load(t.coll.Maps, constants, attach, types)
		}
	})
	err = t.loadPrograms(spec, types, append(slices.Collect(maps.Values(lifePrograms)), enterProgram, startsProgram)...)
	all.Wait()
	if err = errors.Join(exitErr, err); err != nil {
		return err
	}
	if exit == nil {
		if err := t.loadPrograms(spec, types, exitProgram); err != nil {
			return err
		}
		exit = t.coll.Programs[exitProgram]
	}
	if attach == attachSession {
		if err := t.coll.Maps["exits"].Put(uint32(0), exit); err != nil {
			return fmt.Errorf("load the kernel side: %w", err)
		}
	}
	t.gates.times = t.coll.Maps["gates"]
	t.progs = programs{t.coll.Programs[enterProgram], exit, attach}
	return nil
}

// loadPrograms loads programs of spec over the maps that are there.
func (t *Tracer) loadPrograms(spec *ebpf.CollectionSpec, types *btf.Cache, names ...string) error {
	spec = spec.Copy()
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(names, name) })
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: t.coll.Maps, Cache: types})
	if err != nil {
		return fmt.Errorf("load the kernel side: %w", err)
	}
	for _, name := range names {
		t.coll.Programs[name] = coll.DetachProgram(name)
	}
	coll.Close()
	return nil
}
