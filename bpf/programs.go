package bpf

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// LoadPrograms loads programs of spec, by name, over maps that there are already: all that spec has
// except those of constants.
func LoadPrograms(spec *ebpf.CollectionSpec, over map[string]*ebpf.Map, types *btf.Cache, log ebpf.LogLevel, names ...string) (map[string]*ebpf.Program, error) {
	spec = spec.Copy()
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(names, name) })
	kernel, err := types.Kernel()
	if err != nil {
		return nil, fmt.Errorf("read kernel types: %w", err)
	}
	// Without KernelTypes, the types of every module are read, too: 40 MiB on a machine with 200.
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: over, Programs: ebpf.ProgramOptions{KernelTypes: kernel, LogLevel: log}, Cache: types,
	})
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	loaded := make(map[string]*ebpf.Program)
	for _, name := range names {
		loaded[name] = coll.DetachProgram(name)
	}
	return loaded, nil
}
