package alert

import (
	"fmt"
	"testing"
	"time"
)

// A log has what fires, and the latest that ended, each with its beginning.
func TestLog(t *testing.T) {
	var l Log
	w := NewWatch([]Rule{parsed(t, "gpu.used > 80%"), parsed(t, "process.live > 1GiB")})
	look := func(minute int, used int64) {
		m := totals(used*gib, 2*gib)
		m.Meta.Duration = time.Duration(minute) * time.Minute
		told := w.Observe(m.Meta.Duration, m)
		l.Note(w.Firing(), told)
	}
	look(0, 90)
	look(1, 95)
	all := l.All()
	if len(all) != 2 || all[0].Value != 95*gib || !all[0].Time.After(all[0].Since) || all[1].Subject.PID != 7 {
		t.Errorf("%+v", all)
	}
	for n := range 4 {
		look(2+n, 10)
	}
	look(7, 10)
	if all = l.All(); len(all) != 2 || all[0].Resolved || !all[1].Resolved || all[1].Time.Sub(all[1].Since) != 7*time.Minute {
		t.Errorf("%+v", all)
	}
	for n := range 2 * maxEnded {
		l.Note(nil, []Alert{{Resolved: true, Rule: fmt.Sprint(n)}, {}})
	}
	if all = l.All(); len(all) != maxEnded || all[0].Rule != fmt.Sprint(2*maxEnded-1) {
		t.Errorf("%d, the first %+v", len(all), all[0])
	}
}
