package probes

import "github.com/gpumemtrace/gpumemtrace/internal/source/proc"

// maxSpread bounds the calls of ioctl with probes in one library. NVIDIA's libcuda from 390 to 595 has 3 to
// 72 calls.
const maxSpread = 96

// spread returns the points to use instead of ioctl's stub: the calls of the stub. The kernel emulates these
// calls, and most jumps after them, but not the stub, which is a jump to an address in memory. A call with a
// constant request that is not in the table gets no probe. The stub itself gets the probe if it is unknown
// whether these are all calls, or if there are too many, or if a shadow stack may watch the code: the kernel
// writes no return address there.
func spread(e *proc.ELF, stub point) []point {
	if e.ShadowStack() {
		return []point{stub}
	}
	calls := e.Calls(stub.offset)
	var points []point
	for _, c := range calls {
		if !c.Constant || requests(c.Second) {
			points = append(points, point{stub.entry, stub.offset, c.Offset, c.Return})
		}
	}
	if len(calls) == 0 || len(points) > maxSpread {
		return []point{stub}
	}
	return points
}
