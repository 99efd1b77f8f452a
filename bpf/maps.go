package bpf

import (
	"fmt"
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
	var failed string
	var failure error
	for name, spec := range specs {
		all.Go(func() {
			m, err := ebpf.NewMap(spec)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made[name] = m
			case failure == nil || name < failed:
				failed, failure = name, fmt.Errorf("map %s: %w", name, err)
			}
		})
	}
	all.Wait()
	if failure != nil {
		for _, m := range made {
			m.Close()
		}
		return nil, failure
	}
	return made, nil
}
