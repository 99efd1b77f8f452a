package unwind

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// The kernel takes the probes of watched processes off one after the other, in about a
// tenth of a second each. Closing waits for that, however many there are.
func TestCloseOfManyPythons(t *testing.T) {
	python := anyPython(t)
	targets := make([]*target, maxWatched)
	for i := range targets {
		targets[i] = startFrees(t, python)
	}
	c := newCapture(t, Options{})
	c.attach(buildLibrary(t), symbol, 1)
	for _, p := range targets {
		c.trace(p.pid)
		c.watch(p)
	}
	pids := make([]int, len(targets))
	for i, p := range targets {
		pids[i] = p.pid
	}
	if left, accounted := probes.Leftovers(pids, PythonPlaces); len(left) > 0 || !accounted {
		t.Errorf("probes that are on are taken for left behind: %+v, %v", left, accounted)
	}
	var said []string // by one goroutine until stop returns
	stop := removal.Watch(func(text string) { said = append(said, text) })
	began := time.Now()
	c.close()
	took := time.Since(began)
	stop()
	t.Logf("closed with %d processes watched in %v", len(targets), took.Round(10*time.Millisecond))
	if n := removal.On(); n != 0 {
		t.Errorf("%d probes are on", n)
	}
	// The kernel takes at least two grace periods for each.
	if took > 2*time.Second && (len(said) == 0 || !strings.HasSuffix(said[0], fmt.Sprintf(" of %d are off", len(targets)))) {
		t.Errorf("it said %q", said)
	}
	for _, p := range targets {
		for _, probe := range probesOf(t, p.pid) {
			if probe.trapped(p.pid) {
				t.Errorf("process %d has a breakpoint", p.pid)
			}
		}
	}
}
