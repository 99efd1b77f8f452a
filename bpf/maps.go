package bpf

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// NewMaps makes maps by name, in parallel, because the kernel clears the memory of each. If any fail,
// it makes none. It returns only the error of the first of them by name: most have the same cause.
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
