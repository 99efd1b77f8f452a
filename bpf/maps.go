package bpf

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// NewMaps makes maps by name, or none. It makes them in parallel, because the kernel clears the memory
// of each.
func NewMaps(specs map[string]*ebpf.MapSpec) (map[string]*ebpf.Map, error) {
	made := make(map[string]*ebpf.Map, len(specs))
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for name, spec := range specs {
		all.Go(func() {
			m, err := ebpf.NewMap(spec)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("map %s: %w", name, err))
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
		return nil, errors.Join(errs...)
	}
	return made, nil
}
