package unwind

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sync/errgroup"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

// exitProgram runs where a probed function returns. The attach cookie is the row.
const exitProgram = "gm_call_exit_unwind"

// sizes are the entries of those of the unwinder's maps that its loader sizes
// (tracer.loadAllMaps).
var sizes = map[string]uint32{
	"pid_page_to_mapping_info": 1 << 20, // 4 GB of executable mappings
	"stack_delta_page_to_info": 1 << 16,
	"pid_events":               1 << 10, // read regularly
	tablesMap:                  1 << 16,
}

// tablesMap has the unwind tables of all executables. The unwinder's sources have a map for
// each size of a table, and the verifier would check the search of a table once for each of
// them. So all of their names are names of this map.
const tablesMap = "unwind_tables"

// goSideMaps are maps that only the unwinder's Go side uses.
var goSideMaps = []string{"apm_int_procs", "reported_pids"}

// kernel is our programs and the maps that they share with the unwinder's Go side.
type kernel struct {
	maps  map[string]*ebpf.Map // without those of Options
	exit  *ebpf.Program        // exitProgram
	copy  *ebpf.Program        // copyProgram
	table *ebpf.MapSpec        // of one executable's unwind table
}

// newKernel makes the maps, and returns a function that loads the programs, which may run
// while processes are analysed.
func newKernel(opts Options) (*kernel, func() error, error) {
	if opts.Types == nil {
		opts.Types = btf.NewCache()
	}
	if opts.object == nil {
		opts.object = bpf.LoadUnwind
	}
	spec, err := opts.object()
	if err != nil {
		return nil, nil, err
	}
	delete(spec.Programs, "native_tracer_entry") // comes with the included source
	spec.Programs[exitProgram].AttachType = opts.Attach
	k := &kernel{}
	if err := k.loadMaps(spec, opts.Maps); err != nil {
		return nil, nil, err
	}
	return k, func() error {
		if err := configure(spec, opts); err != nil {
			return err
		}
		return k.loadPrograms(spec, opts)
	}, nil
}

// configure sets the programs' constants.
func configure(spec *ebpf.CollectionSpec, opts Options) error {
	system, err := systemConstants(opts.Types)
	if err != nil {
		return err
	}
	ours := map[string]any{
		"cfg_memo":          uint32(1),
		"cfg_verify_stacks": opts.VerifyStacks,
		"cfg_slots":         slots(),
	}
	if opts.NoMemo {
		ours["cfg_memo"] = uint32(0)
	}
	for _, constants := range []map[string]any{system, opts.Constants, ours} {
		for name, value := range constants {
			v, ok := spec.Variables[name]
			if !ok {
				continue // a constant of a program that is not in this object
			}
			if err := v.Set(value); err != nil {
				return fmt.Errorf("constant %s: %w", name, err)
			}
		}
	}
	return nil
}

// loadPrograms loads the programs in parallel: nearly all of the time is the verifier's.
func (k *kernel) loadPrograms(spec *ebpf.CollectionSpec, opts Options) error {
	over := make(map[string]*ebpf.Map)
	for name := range spec.Maps {
		if !strings.HasPrefix(name, ".") { // constants
			over[name] = cmp.Or(opts.Maps[name], k.maps[name])
		}
	}
	var both errgroup.Group
	for name, to := range map[string]**ebpf.Program{exitProgram: &k.exit, copyProgram: &k.copy} {
		both.Go(func() error {
			loaded, err := bpf.LoadPrograms(spec, over, opts.Types, logLevel, name)
			*to = loaded[name]
			return err
		})
	}
	return both.Wait()
}

// slots returns how many stacks may be captured at one time: one on each CPU, and those of
// threads that are preempted during a capture.
func slots() uint32 {
	const preempted = 16
	n, err := ebpf.PossibleCPU()
	if err != nil {
		n = runtime.NumCPU()
	}
	return uint32(n) + preempted
}

// loadMaps makes the maps that the caller does not share.
func (k *kernel) loadMaps(spec *ebpf.CollectionSpec, shared map[string]*ebpf.Map) error {
	used := make(map[string]bool)
	for _, program := range spec.Programs {
		for _, instruction := range program.Instructions {
			used[instruction.Reference()] = true
		}
	}
	for _, name := range goSideMaps {
		used[name] = true
	}
	spec.Maps["unwinds"].MaxEntries = slots()
	own := make(map[string]*ebpf.MapSpec)
	var forTables []string // names of tablesMap
	for name, m := range spec.Maps {
		if !used[name] {
			// It comes with the unwinder's sources.
			delete(spec.Maps, name)
			continue
		}
		if m.Type == ebpf.HashOfMaps {
			m.MaxEntries = sizes[tablesMap]
			m.InnerMap.Flags |= features.BPF_F_MMAPABLE | features.BPF_F_INNER_MAP // of any size
			// Its types would be loaded again for each table.
			m.InnerMap.Key, m.InnerMap.Value = nil, nil
			k.table, own[tablesMap] = m.InnerMap, m
			forTables = append(forTables, name)
			continue
		}
		if n, ok := sizes[name]; ok {
			m.MaxEntries = n
		}
		switch {
		case strings.HasPrefix(name, "."): // constants
		case shared[name] != nil:
			m.MaxEntries = shared[name].MaxEntries()
		default:
			own[name] = m
		}
	}
	maps.DeleteFunc(spec.Variables, func(_ string, v *ebpf.VariableSpec) bool { return spec.Maps[v.SectionName] == nil })
	// The unwinder's Go side requires it, and does not use it.
	own["go_procs"] = &ebpf.MapSpec{Name: "go_procs", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	var err error
	if k.maps, err = bpf.NewMaps(own); err != nil {
		return err
	}
	for _, name := range forTables {
		k.maps[name] = k.maps[tablesMap]
	}
	return nil
}

// logLevel requests a short log of the verifier. Without any log, a refused program
// would be verified again with a log of a hundred megabytes.
const logLevel = ebpf.LogLevelStats

func (k *kernel) close() {
	k.exit.Close()
	k.copy.Close()
	for _, m := range k.maps {
		m.Close()
	}
}
