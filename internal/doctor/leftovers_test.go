package doctor

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/probes"
)

func TestCheckLeftovers(t *testing.T) {
	found := map[int][]probes.Leftover{
		7: {{PID: 7, Function: "cuMemAlloc_v2"}, {PID: 7, Function: "cuMemFree_v2"}, {PID: 7, Function: "cuMemFree_v2"}},
		9: {{PID: 9, Function: "cuMemFree_v2"}},
	}
	names := map[int]string{7: "train", 9: "python3"}
	debugged := map[int][]probes.Leftover{7: {{PID: 7, Function: "cuMemAlloc_v2", Debugged: true}}}
	for _, c := range []struct {
		l    leftovers
		want want
	}{
		{leftovers{}, want{"left behind", OK, "none", ""}},
		{leftovers{found, names, true}, want{"left behind", Warn, "killed tracer left behind: 7 (train): cuMemAlloc_v2, cuMemFree_v2; 9 (python3): cuMemFree_v2", "next trace removes the breakpoints"}},
		{leftovers{found, names, false}, want{"left behind", Warn, "or the probes of a tracer that is running", "CAP_SYS_ADMIN"}},
		{leftovers{debugged, names, true}, want{"of a debugger", Warn, "with a debugger have breakpoints at probed functions: 7 (train): cuMemAlloc_v2", "before a trace"}},
	} {
		checks := checkLeftovers(c.l)
		wellFormed(t, checks)
		c.want.verify(t, checks)
	}
}
