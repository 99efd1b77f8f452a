package bpf

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
)

// NewMaps makes maps by name. If one fails, it makes none, and returns the error of the first one by
// name: a kernel that refuses one map refuses all. It makes them in parallel, because the kernel
// clears the memory of each.
func NewMaps(specs map[string]*ebpf.MapSpec) (map[string]*ebpf.Map, error) {
	made := make(map[string]*ebpf.Map, len(specs))
	var all sync.WaitGroup
	var mu sync.Mutex
	errs := make(map[string]error)
	for name, spec := range specs {
		all.Go(func() {
			m, err := ebpf.NewMap(spec)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs[name] = fmt.Errorf("map %s: %w", name, err)
				return
			}
			made[name] = m
		})
	}
	all.Wait()
	if len(errs) > 0 {
		for _, m := range made {
			m.Close()
		}
		return nil, errs[slices.Min(slices.Collect(maps.Keys(errs)))]
	}
	return made, nil
}
