package agent

import (
	"testing"
	"time"
)

// Some reports may come at once, then one at an interval, and after a rest some again.
func TestReports(t *testing.T) {
	var r reports
	at, were := time.Hour, 0
	first, changed := r.allow(at, were)
	if first != reportsAtOnce || !changed {
		t.Fatalf("%d at first", first)
	}
	were = first // all come at once
	for range 720 {
		at += 5 * time.Second
		n, changed := r.allow(at, were)
		if changed != (n > were) {
			t.Fatalf("%d of %d, changed %v", were, n, changed)
		}
		were = n
	}
	if most := first + int(time.Hour/reportInterval); were > most || were < most-1 {
		t.Errorf("%d in an hour, want %d", were, most)
	}
	for range 720 {
		at += 5 * time.Second
		r.allow(at, were)
	}
	if n, _ := r.allow(at, were); n != were+reportsAtOnce {
		t.Errorf("%d after a rest, want %d", n, were+reportsAtOnce)
	}
	if n, changed := r.allow(at+24*time.Hour, were); n != were+reportsAtOnce || changed {
		t.Errorf("%d, and told anew %v, though nothing happens", n, changed)
	}
}
