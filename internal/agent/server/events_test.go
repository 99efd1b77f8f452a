package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

var (
	loopLine   = "train_step train.py:88"
	loopFrames = []string{"cuMemAlloc_v2", "at::empty_cuda /usr/lib/libtorch_cuda.so", "forward /home/me/model.py:41", "train_step /home/me/train.py:88", "<module> /home/me/train.py:120"}
)

// eventful is a trace of two hours of two processes, with alerts, failures and leaks.
func eventful(t *testing.T) *served {
	t.Helper()
	h := begun()
	other := event.Process{PID: 5000, Start: event.StartUnit}
	h.apply(&record.Process{Process: other, Target: true, Name: "eval", FromStart: true})
	h.alloc(2*time.Second, 1, 1<<40, 9<<30)
	h.allocBy(other, 3*time.Second, 2, 2<<40, 3<<30, "/bin/x", "f2")
	h.at(2 * time.Hour)
	boot := time.Unix(1_700_000_000, 0).UTC()
	ago := func(d time.Duration) time.Time { return boot.Add(2*time.Hour - d) }
	o := Options{Source: h}
	o.Alerts = func() []alert.Alert {
		return []alert.Alert{
			{Rule: "leak", Subject: alert.Subject{PID: 4711, Process: "python3"}, Since: ago(14 * time.Minute), Time: ago(0), Text: "process 4711 (python3): memory of a stack grew by 1.50 GiB in 6m and is still held, allocated at " + loopLine + " (leak)", Stack: loopFrames},
			{Rule: "gpu.used > 90%", Subject: alert.Subject{GPU: "cuda:0"}, Since: ago(3 * time.Minute), Time: ago(0), Text: "GPU cuda:0: gpu.used is 76.0 GiB, 95.0% of 80.0 GiB (gpu.used > 90%)"},
			{Rule: "oom", Resolved: true, Subject: alert.Subject{PID: 4711, Process: "python3", GPU: "cuda:0"}, Since: ago(25 * time.Minute), Time: ago(15 * time.Minute), Text: "resolved: process 4711 (python3) on GPU cuda:0 has not run out of memory for 10m (oom)"},
			{Rule: "process.live > 2GiB", Resolved: true, Subject: alert.Subject{PID: 5000, Process: "eval"}, Since: ago(70 * time.Minute), Time: ago(50 * time.Minute), Text: "resolved: process 5000 (eval): process.live is 1.00 GiB (process.live > 2GiB)"},
		}
	}
	o.Leaks = func() []leaks.Leak {
		leak := leaks.Leak{PID: 4711, Process: "python3", GPU: "cuda:0", Growth: 3 << 29, Held: 2 << 30, Over: 6 * time.Minute, First: ago(14 * time.Minute), Last: ago(0), Now: true,
			Line: loopLine, Brief: "at::empty_cuda < forward model.py:41 < " + loopLine, Frames: loopFrames}
		starts := leak
		starts.PID, starts.Process, starts.Starting, starts.Line = 5000, "eval", true, ""
		old := leak
		old.Now, old.First, old.Last = false, ago(100*time.Minute), ago(90*time.Minute)
		return []leaks.Leak{leak, starts, old}
	}
	s := serve(t, o)
	for _, d := range []time.Duration{100 * time.Minute, 25 * time.Minute} {
		f := failureOf("python3", "train_step")
		f.Time, f.GPU = ago(d), "cuda:0"
		s.keep(f)
	}
	return s
}

// What happened is of the period, the process and the GPU that were chosen.
func TestEvents(t *testing.T) {
	s := eventful(t)
	for query, want := range map[string]string{
		"":                      "leak, gpu.used > 90%, oom | 2 | 4711 true, 5000 true",
		"?minutes=120":          "leak, gpu.used > 90%, oom, process.live > 2GiB | 2 1 | 4711 true, 5000 true, 4711 false",
		"?pid=5000&minutes=120": "process.live > 2GiB |  | 5000 true",
		"?gpu=7":                " |  | ",
	} {
		text := s.get(http.StatusOK, "/api/v1/events"+query)
		var d events
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		var told, failed, found []string
		for _, a := range d.Alerts {
			told = append(told, a.Rule)
		}
		for _, in := range d.Failures {
			failed = append(failed, fmt.Sprint(in.Number))
		}
		for _, l := range d.Leaks {
			found = append(found, fmt.Sprint(l.PID, " ", l.Now))
		}
		if got := strings.Join(told, ", ") + " | " + strings.Join(failed, " ") + " | " + strings.Join(found, ", "); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
		if strings.Contains(text, "null") {
			t.Errorf("%q has a null: %.300s", query, text)
		}
	}
	for _, query := range []string{"?minutes=0", "?minutes=2881", "?minutes=x", "?pid=0", "?gpu=%20", "?seconds=1"} {
		s.get(http.StatusBadRequest, "/api/v1/events"+query)
	}
}

// The JSON has no more alerts than there is room for.
func TestEventsAreBounded(t *testing.T) {
	s := serve(t, Options{Source: begun(), Alerts: func() []alert.Alert { return make([]alert.Alert, maxAlerts+7) }})
	var d events
	if err := json.Unmarshal([]byte(s.get(http.StatusOK, "/api/v1/events")), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Alerts) != maxAlerts || d.MoreAlerts != 7 {
		t.Errorf("%d alerts and %d more", len(d.Alerts), d.MoreAlerts)
	}
}
