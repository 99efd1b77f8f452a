package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// listed are the reports that the API lists.
func (s *served) listed() []incident {
	s.t.Helper()
	var d struct{ Reports []incident }
	if err := json.Unmarshal([]byte(s.get(http.StatusOK, "/api/v1/oom")), &d); err != nil {
		s.t.Fatal(err)
	}
	return d.Reports
}

// The failures of a real program have their reports.
func TestIncidents(t *testing.T) {
	var all []*state.Incident
	end, err := replay.Play(recordings+"out_of_memory.gmt", replay.Options{At: replay.End, OutOfMemory: func(in *state.Incident) { all = append(all, in) }})
	if err != nil || len(all) == 0 {
		t.Fatal(len(all), err)
	}
	s := serve(t, Options{Source: &held{state: end}})
	if got := s.get(http.StatusOK, "/api/v1/oom"); strings.TrimSpace(got) != `{"reports":[]}` {
		t.Errorf("without any %q", got)
	}
	for _, in := range all {
		s.Incident(in)
	}
	got := s.listed()
	if len(got) != len(all) || got[0].Number != int64(len(all)) || got[0].Report != "" || got[0].PID == 0 || got[0].Requested == 0 {
		t.Errorf("%+v", got)
	}
	var one incident
	if err := json.Unmarshal([]byte(s.get(http.StatusOK, "/api/v1/oom/1")), &one); err != nil {
		t.Fatal(err)
	}
	wants(t, "the report", one.Report, "Out of GPU memory: ", "GPU 0", "c10::reportOutOfMemoryToProfiler")
	if strings.Contains(one.Report, "_ZN") {
		t.Error("a name is mangled")
	}
	for path, status := range map[string]int{"/0": 400, "/01": 400, "/+1": 400, "/x": 400, "/%2e%2e%2fx": 400, "/999": 404, "/1/x": 404, "/": 404, "/1?x=1": 400} {
		s.get(status, "/api/v1/oom"+path)
	}
}

// The newest are kept, and it is counted how many are not; each has a bounded report.
func TestIncidentsAreBounded(t *testing.T) {
	s := serve(t, Options{Source: begun()})
	o := &snapshot.OutOfMemory{Time: time.Unix(1, 0), Process: strings.Repeat("\x1b[2J<b>", 1000), Snapshot: &snapshot.Snapshot{}, API: "cuMemAlloc_v2"}
	for i := range 2_000 {
		o.Snapshot.Notes = append(o.Snapshot.Notes, strings.Repeat("note ", 30)+fmt.Sprint(i))
		o.GPUs = append(o.GPUs, snapshot.GPUMemory{GPU: fmt.Sprint(i), Name: strings.Repeat("x", 100)})
	}
	for range maxIncidents + 3 {
		s.keep(o)
	}
	got := s.listed()
	if len(got) != maxIncidents || got[0].Number != maxIncidents+3 {
		t.Errorf("%d, the newest is %d", len(got), got[0].Number)
	}
	for _, c := range s.Loss() {
		if c.Name == "http_oom_reports_dropped" && c.Value != 3 {
			t.Errorf("%s is %d", c.Name, c.Value)
		}
	}
	var one incident
	if err := json.Unmarshal([]byte(s.get(http.StatusOK, "/api/v1/oom/60")), &one); err != nil {
		t.Fatal(err)
	}
	if len(one.Report) > maxReport+10 || !strings.HasSuffix(one.Report, "\n[...]\n") || strings.Contains(one.Report, "\x1b") {
		t.Errorf("%d bytes, %q", len(one.Report), one.Report[len(one.Report)-20:])
	}
	s.get(http.StatusNotFound, "/api/v1/oom/2")
}
