package probes

import "github.com/gpumemtrace/gpumemtrace/internal/source/proc"

// maxSpread bounds the calls of ioctl with probes in one library. Those of NVIDIA's
// libcuda from 390 to 595 are 3 to 72.
const maxSpread = 96

// spread returns the points in place of the one on ioctl's stub: its calls, which
// the kernel carries out itself, as it does most jumps behind them. (A stub is a jump
// to where memory says, which it does not.) A call that is known to make none of the
// kernel driver's requests in the table gets no probe. It is the stub that gets
// one if its calls are not known to be all, or are too many. The same goes for code
// that a shadow stack may watch: the kernel puts no return address there.
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
