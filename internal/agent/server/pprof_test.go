package server

import (
	"bytes"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// parsed is the profile of a request.
func (s *served) parsed(query string) *profile.Profile {
	s.t.Helper()
	p, err := profile.Parse(strings.NewReader(s.get(http.StatusOK, "/debug/pprof/gpumem"+query)))
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// sum adds up one of a profile's values.
func sum(t testing.TB, p *profile.Profile, name string) (out int64) {
	t.Helper()
	for i, x := range p.SampleType {
		if x.Type == name {
			for _, sample := range p.Sample {
				out += sample.Value[i]
			}
			return out
		}
	}
	t.Fatalf("no %s in %v", name, p.SampleType)
	return 0
}

// What is in use of a profile is what processes hold, to the byte, all together and of
// each process and GPU.
func TestProfile(t *testing.T) {
	h := recorded(t, "fsdp")
	s := serve(t, Options{Source: h})
	snap := h.View(state.Want{Driver: true}).Snapshot()
	var all int64
	for i := range snap.Samples {
		if snapshot.OnGPU(snap.Samples[i].Kind) {
			all += snap.Samples[i].InuseBytes
		}
	}
	p := s.parsed("")
	if got := sum(t, p, "inuse_space"); got != all || all == 0 {
		t.Errorf("%d bytes in use, want %d", got, all)
	}
	at := snap.Meta.Start.Add(snap.Meta.Duration)
	if p.TimeNanos != at.UnixNano() || p.DurationNanos != 0 {
		t.Errorf("time %d, duration %d; want %d and none", p.TimeNanos, p.DurationNanos, at.UnixNano())
	}
	var byPID, byGPU int64
	for _, x := range snap.Processes {
		byPID += sum(t, s.parsed("?pid="+fmt.Sprint(x.PID)), "inuse_space")
	}
	if byPID != all {
		t.Errorf("%d bytes of all processes, want %d", byPID, all)
	}
	labels := map[string]bool{}
	for i := range snap.Samples {
		labels[snap.Samples[i].GPU] = true
		if snap.Samples[i].GPU == "" && snapshot.OnGPU(snap.Samples[i].Kind) {
			byGPU += snap.Samples[i].InuseBytes
		}
	}
	delete(labels, "")
	if len(labels) < 2 {
		t.Fatal(labels)
	}
	for gpu := range labels {
		byGPU += sum(t, s.parsed("?gpu="+gpu), "inuse_space")
	}
	if byGPU != all {
		t.Errorf("%d bytes of all GPUs, want %d", byGPU, all)
	}
}

func TestProfileHeaders(t *testing.T) {
	s := serve(t, Options{Source: recorded(t, "accelerate")})
	answer, body := s.ask(http.MethodGet, "/debug/pprof/gpumem")
	h := answer.Header
	if h.Get("Content-Type") != "application/octet-stream" || !strings.Contains(h.Get("Content-Disposition"), "gpumem") || h.Get("X-Go-Pprof") != "" || body[:2] != "\x1f\x8b" {
		t.Errorf("%v, %x", h, body[:2])
	}
	answer, body = s.ask(http.MethodGet, "/debug/pprof/gpumem?seconds=x")
	if answer.StatusCode != http.StatusBadRequest || answer.Header.Get("X-Go-Pprof") != "1" || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("%s, %v", answer.Status, answer.Header)
	}
	wants(t, "error", body, "seconds must be a number from 1 to 3600")
	wants(t, "text", s.get(http.StatusOK, "/debug/pprof/gpumem?debug=1"), "IN USE", "GPU 0")
	wants(t, "index", s.get(http.StatusOK, "/debug/pprof/"), `href="gpumem"`)
	s.get(http.StatusNotFound, "/debug/pprof/gpumem?pid=1")
	s.get(http.StatusNotFound, "/debug/pprof/gpumem?gpu=77")
	s.get(http.StatusNotFound, "/debug/pprof/heap")
}

// go tool pprof takes the address of a profile.
func TestGoToolPprof(t *testing.T) {
	s := serve(t, Options{Source: recorded(t, "accelerate"), WebConfig: writeWeb(t)})
	home := t.TempDir()
	pprof := func(url string) (string, error) {
		c := exec.Command("go", "tool", "pprof", "-top", "-nodecount=5", url)
		c.Env = append(c.Environ(), "PPROF_TMPDIR="+home)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	out, err := pprof(strings.Replace(s.url, "http://", "http://ada:"+password+"@", 1) + "/debug/pprof/gpumem")
	if err != nil {
		t.Fatal(err, out)
	}
	wants(t, "pprof", out, "Type: inuse_space", "flat%")
	if out, err = pprof(s.url + "/debug/pprof/gpumem"); err == nil {
		t.Error(out)
	}
	wants(t, "pprof without a password", out, "give a user and a password")
}

// begins calls then after its first snapshot.
type begins struct {
	live.Source
	once sync.Once
	then func()
}

func (b *begins) Snapshot(q live.Query) (*live.Snapshot, error) {
	s, err := b.Source.Snapshot(q)
	b.once.Do(b.then)
	return s, err
}

// A window has what was allocated in it, and what is in use at its end; time spent on it
// does not end it early.
func TestWindow(t *testing.T) {
	h := begun()
	h.alloc(2*time.Second, 1, 1<<20, 100)
	h.alloc(2*time.Second, 2, 2<<20, 1000)
	h.at(3 * time.Second)
	s := serve(t, Options{Source: h}, func(s *Server) { s.http.ReadTimeout = 300 * time.Millisecond })
	s.looks.source = &begins{Source: s.looks.source, then: func() {
		h.alloc(4*time.Second, 1, 3<<20, 10)
		h.alloc(4*time.Second, 3, 4<<20, 7)
		h.free(5*time.Second, 2<<20)
		h.at(6 * time.Second)
	}}
	p := s.parsed("?seconds=1")
	for name, want := range map[string]int64{"alloc_objects": 2, "alloc_space": 17, "inuse_objects": 3, "inuse_space": 117} {
		if got := sum(t, p, name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
	if got := time.Duration(p.DurationNanos); got != 3*time.Second {
		t.Errorf("it is %v long, want 3s of the trace", got)
	}
	var text bytes.Buffer
	if err := p.Write(&text); err != nil {
		t.Fatal(err)
	}
	if got := sum(t, s.parsed(""), "alloc_space"); got != 1117 {
		t.Errorf("%d allocated ever, want 1117", got)
	}
}

// A call site that was forgotten in a window counts from its new beginning, and no value
// is below zero.
func TestWindowOfForgottenSite(t *testing.T) {
	h := begun()
	h.alloc(2*time.Second, 1, 1<<20, 1000)
	h.alloc(2*time.Second, 2, 2<<20, 50)
	h.at(3 * time.Second)
	l := newLooks(live.NewTraceSource(h))
	before, err := l.now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again := begun()
	again.alloc(4*time.Second, 1, 3<<20, 10)
	again.alloc(4*time.Second, 2, 4<<20, 60)
	after, err := newLooks(live.NewTraceSource(again)).now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, x := range between(turnovers(before.Snapshot), after.Snapshot).Samples {
		got = append(got, x.AllocBytes)
	}
	if len(got) != 2 || got[0] != 10 || got[1] != 10 {
		t.Errorf("%v, want 10 of the one that began anew and 60-50 of the other", got)
	}
}

// Each sample has the labels of its process's workload, in a profile of one and of
// several, and what it says of itself stays.
func TestWorkloadLabels(t *testing.T) {
	var asked atomic.Int32
	s := serve(t, Options{Source: recorded(t, "fsdp"), Labels: func(p *snapshot.Process) map[string]string {
		asked.Add(1)
		return map[string]string{"pod": fmt.Sprintf("pod-%d", p.PID), "service_name": "of " + p.Name, "owner": "nobody"}
	}})
	pids := map[string]bool{}
	p := s.parsed("")
	for _, x := range p.Sample {
		pid := x.Label["pid"]
		if len(pid) != 1 || len(x.Label["process"]) != 1 {
			t.Fatal(x.Label)
		}
		pids[pid[0]] = true
		if x.Label["pod"][0] != "pod-"+pid[0] || x.Label["service_name"][0] != "of "+x.Label["process"][0] {
			t.Errorf("%v", x.Label)
		}
	}
	if len(pids) < 2 || int(asked.Load()) != len(pids) {
		t.Errorf("processes %v, asked for %d", pids, asked.Load())
	}
	plain := serve(t, Options{Source: recorded(t, "fsdp")})
	for pid := range pids {
		p, want := s.parsed("?pid="+pid), plain.parsed("?pid="+pid)
		if len(p.Sample) == 0 || len(p.Sample) != len(want.Sample) {
			t.Fatalf("%d samples, want %d", len(p.Sample), len(want.Sample))
		}
		for i, x := range p.Sample {
			if x.Label["pid"] != nil || len(x.Label["pod"]) != 1 || x.Label["pod"][0] != "pod-"+pid {
				t.Errorf("%v", x.Label)
			}
			if owner := want.Sample[i].Label["owner"]; owner != nil && !slices.Equal(x.Label["owner"], owner) {
				t.Errorf("owner %q, want %q", x.Label["owner"], owner)
			}
		}
	}
}
