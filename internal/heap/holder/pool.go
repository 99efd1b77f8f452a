package holder

import (
	"cmp"
	"fmt"
	"math"
)

// A PoolID is a private pool's MempoolId_t, or zero for the pool of all requests. Pools
// of graphs have a First, those that the program made by itself a Second.
type PoolID struct {
	First  uint64 `json:"first"`
	Second uint64 `json:"second"`
}

// UnknownPool is of what may be a private pool's.
var UnknownPool = PoolID{math.MaxUint64, math.MaxUint64}

// String returns "" for the pool of all requests, "unknown", or the id.
func (p PoolID) String() string {
	switch p {
	case PoolID{}:
		return ""
	case UnknownPool:
		return "unknown"
	}
	return fmt.Sprintf("%d.%d", p.First, p.Second)
}

// Compare orders pools: that of all requests comes first.
func (p PoolID) Compare(o PoolID) int {
	return cmp.Or(cmp.Compare(p.First, o.First), cmp.Compare(p.Second, o.Second))
}
