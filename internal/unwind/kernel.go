package unwind

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

// exitProgram runs where a probed function returns. The attach cookie is the row.
const exitProgram = "gm_call_exit_unwind"

// The chain, by its slots in unwind_progs. What only ours has is in slots of
// interpreters that it has not.
var chain = map[uint32]string{
	support.ProgUnwindStop:   "gm_unwind_stop",
	support.ProgUnwindNative: "gm_unwind_native",
	support.ProgUnwindPython: "gm_unwind_python",
	support.ProgGoLabels:     "gm_unwind_enter",
}

// sizes are those of the unwinder's maps where its sources leave them to its
// loader (tracer.loadAllMaps), in entries.
var sizes = map[string]uint32{
	"pid_page_to_mapping_info": 1 << 20, // 4 GB of executable mappings
	"stack_delta_page_to_info": 1 << 16,
	"pid_events":               1 << 10, // looked through regularly
}

// goSideMaps are those that only the unwinder's Go side uses.
var goSideMaps = []string{"apm_int_procs", "reported_pids"}

// kernel is our programs and the maps that they share with the unwinder's Go
// side.
type kernel struct {
	maps     map[string]*ebpf.Map // but those of Options
	programs map[string]*ebpf.Program
	deltas   *ebpf.MapSpec // of one executable's unwind table
	// memoErr is why the memo could not be loaded, nil when it is on or not
	// wanted.
	memoErr error
}

func loadKernel(opts Options) (*kernel, error) {
	unwind, err := bpf.LoadUnwind()
	if err != nil {
		return nil, err
	}
	delete(unwind.Programs, "native_tracer_entry") // comes with the included source
	exit, err := bpf.LoadUnwindExit()
	if err != nil {
		return nil, err
	}
	system, err := systemConstants()
	if err != nil {
		return nil, err
	}
	ours := map[string]any{
		"cfg_memo":                  uint32(1),
		"cfg_verify_stacks":         opts.VerifyStacks,
		"python_frames_per_program": uint32(6),
	}
	if opts.NoMemo {
		ours["cfg_memo"] = uint32(0)
	}
	for _, spec := range []*ebpf.CollectionSpec{unwind, exit} {
		for _, constants := range []map[string]any{system, opts.Constants, ours} {
			if err := setAll(spec, constants); err != nil {
				return nil, err
			}
		}
		for _, prog := range spec.Programs {
			prog.AttachType = opts.Attach
		}
	}

	k := &kernel{programs: make(map[string]*ebpf.Program)}
	if err := k.loadMaps(unwind, opts.Maps); err != nil {
		return nil, err
	}
	err = k.loadPrograms(opts.Maps, unwind, exit)
	if err != nil && !opts.NoMemo {
		// The memo is what takes the verifier longest.
		k.memoErr = err
		if err := unwind.Variables["cfg_memo"].Set(uint32(0)); err != nil {
			return nil, errors.Join(err, k.close())
		}
		err = k.loadPrograms(opts.Maps, unwind, exit)
	}
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	for slot, name := range chain {
		if err := k.maps["unwind_progs"].Put(slot, k.programs[name]); err != nil {
			return nil, errors.Join(fmt.Errorf("chain %s: %w", name, err), k.close())
		}
	}
	return k, nil
}

// loadMaps makes the maps that the caller does not share.
func (k *kernel) loadMaps(spec *ebpf.CollectionSpec, shared map[string]*ebpf.Map) error {
	used := references(spec)
	for _, name := range goSideMaps {
		used[name] = true
	}
	own := &ebpf.CollectionSpec{Maps: make(map[string]*ebpf.MapSpec), Types: spec.Types, ByteOrder: spec.ByteOrder}
	for name, m := range spec.Maps {
		if !used[name] {
			// It comes with the unwinder's sources.
			delete(spec.Maps, name)
			continue
		}
		if n, ok := sizes[name]; ok {
			m.MaxEntries = n
		}
		if m.Type == ebpf.HashOfMaps {
			m.Flags |= features.BPF_F_NO_PREALLOC
			m.InnerMap.Flags |= features.BPF_F_MMAPABLE
			k.deltas = m.InnerMap
		}
		if shared[name] == nil && !strings.HasPrefix(name, ".") {
			own.Maps[name] = m
		}
	}
	dropVariables(spec)
	// The unwinder's Go side wants it, and does not use it.
	own.Maps["go_procs"] = &ebpf.MapSpec{Name: "go_procs", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	coll, err := ebpf.NewCollection(own)
	if err != nil {
		return err
	}
	k.maps = coll.Maps
	return nil
}

// loadPrograms loads every program of the specs, as many at a time as there are
// CPUs: nearly all of it is the verifier's time.
func (k *kernel) loadPrograms(shared map[string]*ebpf.Map, specs ...*ebpf.CollectionSpec) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, spec := range specs {
		for name := range spec.Programs {
			one := spec.Copy()
			maps.DeleteFunc(one.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return other != name })
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				prog, err := k.loadProgram(one, name, shared)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					errs = append(errs, err)
					return
				}
				k.programs[name] = prog
			})
		}
	}
	all.Wait()
	if len(errs) > 0 {
		closeAll(k.programs)
	}
	return errors.Join(errs...)
}

// loadProgram loads the only program of spec.
func (k *kernel) loadProgram(spec *ebpf.CollectionSpec, name string, shared map[string]*ebpf.Map) (*ebpf.Program, error) {
	used := references(spec)
	replace := make(map[string]*ebpf.Map)
	for m := range spec.Maps {
		switch {
		case !used[m]:
			delete(spec.Maps, m)
		case strings.HasPrefix(m, "."): // constants
		case shared[m] != nil:
			replace[m] = shared[m]
		case k.maps[m] != nil:
			replace[m] = k.maps[m]
		}
	}
	dropVariables(spec)
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	return coll.DetachProgram(name), nil
}

func references(spec *ebpf.CollectionSpec) map[string]bool {
	names := make(map[string]bool)
	for _, prog := range spec.Programs {
		for _, ins := range prog.Instructions {
			names[ins.Reference()] = true
		}
	}
	return names
}

func dropVariables(spec *ebpf.CollectionSpec) {
	maps.DeleteFunc(spec.Variables, func(_ string, v *ebpf.VariableSpec) bool {
		return spec.Maps[v.SectionName] == nil
	})
}

func setAll(spec *ebpf.CollectionSpec, constants map[string]any) error {
	for name, value := range constants {
		v, ok := spec.Variables[name]
		if !ok {
			continue // a constant of a program that is not in this object
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("constant %s: %w", name, err)
		}
	}
	return nil
}

func closeAll[T interface{ Close() error }](all map[string]T) {
	for name, c := range all {
		c.Close()
		delete(all, name)
	}
}

func (k *kernel) close() error {
	// A program array that holds programs which refer to it keeps both alive.
	var errs []error
	for slot := range chain {
		if err := k.maps["unwind_progs"].Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	closeAll(k.programs)
	closeAll(k.maps)
	return errors.Join(errs...)
}
