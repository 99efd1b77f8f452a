package unwind

import (
	"errors"
	"sync"

	sdtypes "go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// rules gives the rules of all loaded tables numbers in the kernel side's array. A number
// is free again when no table uses it: the array is bounded, and every process has rules of
// its own.
type rules struct {
	put func(number uint16, rule sdtypes.UnwindInfo) error

	mu      sync.Mutex
	numbers map[sdtypes.UnwindInfo]*rule
	free    []uint16
	next    uint16
}

type rule struct {
	number uint16
	users  int // tables
}

var errTooManyRules = errors.New("too many different rules in unwind tables")

// acquire returns the numbers of rules, which are valid until release.
func (r *rules) acquire(of []sdtypes.UnwindInfo) ([]uint16, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]uint16, len(of))
	for i, info := range of {
		n, err := r.acquireOne(info)
		if err != nil {
			r.releaseLocked(of[:i])
			return nil, err
		}
		out[i] = n
	}
	return out, nil
}

func (r *rules) acquireOne(info sdtypes.UnwindInfo) (uint16, error) {
	if command(info) {
		return uint16(info.Param) | support.DeltaCommandFlag, nil
	}
	if known := r.numbers[info]; known != nil {
		known.users++
		return known.number, nil
	}
	n, fresh := r.next, true
	if last := len(r.free) - 1; last >= 0 {
		n, fresh = r.free[last], false
	}
	if n&support.DeltaCommandFlag != 0 {
		return 0, errTooManyRules
	}
	if err := r.put(n, info); err != nil {
		return 0, err
	}
	if fresh {
		r.next++
	} else {
		r.free = r.free[:len(r.free)-1]
	}
	r.numbers[info] = &rule{n, 1}
	return n, nil
}

// release ends one table's use of the rules.
func (r *rules) release(of []sdtypes.UnwindInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releaseLocked(of)
}

func (r *rules) releaseLocked(of []sdtypes.UnwindInfo) {
	for _, info := range of {
		known := r.numbers[info]
		if known == nil { // a command
			continue
		}
		if known.users--; known.users == 0 {
			delete(r.numbers, info)
			r.free = append(r.free, known.number)
		}
	}
}
