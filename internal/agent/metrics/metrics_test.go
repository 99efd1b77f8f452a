package metrics

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// a source is a state that nothing changes meanwhile.
type source struct{ *state.State }

func (s source) Totals() *state.Totals { return s.View(state.Want{Totals: true}).Totals() }

const recording = "../../../test/recordings/fsdp.gmt"

// played is a recording of a real program on NVIDIA H200s, while it ran.
func played(t testing.TB, at time.Duration) source {
	t.Helper()
	p := replay.NewPlayer(recording)
	t.Cleanup(func() { p.Close() })
	s, err := p.To(at)
	if err != nil {
		t.Fatal(err)
	}
	return source{s}
}

// scrape returns what m serves.
func scrape(t testing.TB, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("status %d, %v: %s", w.Code, err, body)
	}
	return string(body)
}

var sampleLine = regexp.MustCompile(`^(\w+(?:\{.*\})?) (\S+)$`)

// values are the samples of an exposition, by name and labels.
func values(t testing.TB, text string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("no sample: %q", line)
		}
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := out[m[1]]; twice {
			t.Fatalf("twice: %s", m[1])
		}
		out[m[1]] = v
	}
	return out
}

// total adds up the series of a name.
func total(all map[string]float64, name string) (sum float64) {
	for k, v := range all {
		if k == name || strings.HasPrefix(k, name+"{") {
			sum += v
		}
	}
	return sum
}

// What is served of a real program is what a snapshot of it shows, by GPU, kind and owner,
// and by process.
func TestRealProgram(t *testing.T) {
	s := played(t, 10*time.Second)
	strict := prometheus.NewPedanticRegistry()
	strict.MustRegister(New(Options{Source: s, PerProcess: 10}))
	if _, err := strict.Gather(); err != nil {
		t.Error(err)
	}
	want := map[string]float64{}
	snap := s.View(state.Want{Driver: true}).Snapshot()
	for _, x := range snap.Samples {
		want[fmt.Sprintf("%slive_bytes{gpu=%q,kind=%q,owner=%q}", namespace, x.GPU, x.Kind, x.Owner)] += float64(x.InuseBytes)
	}
	maps.DeleteFunc(want, func(_ string, v float64) bool { return v == 0 })
	got := values(t, scrape(t, New(Options{Source: s, PerProcess: 10})))
	live := maps.Clone(got)
	maps.DeleteFunc(live, func(k string, v float64) bool { return v == 0 || !strings.HasPrefix(k, namespace+"live_bytes{") })
	if len(want) < 5 || !maps.Equal(want, live) {
		t.Errorf("samples %v, served %v", want, live)
	}
	for _, p := range snap.Processes {
		for _, x := range snap.Accounts {
			key := fmt.Sprintf(`%sprocess_held_bytes{container="",gpu=%q,job="",namespace="",pid="%d",pod="",process=%q,service=""}`, namespace, x.GPU, x.PID, x.Process)
			if v, ok := got[key]; x.PID == p.PID && x.Known && (!ok || v != float64(x.Total)) {
				t.Errorf("%s is %v, want %d", key, v, x.Total)
			}
		}
	}
	for _, name := range []string{"processes", "gpu_held_bytes", "build_info", "events_total", "process_live_bytes"} {
		if total(got, namespace+name) == 0 {
			t.Errorf("no %s", name)
		}
	}
	for _, name := range []string{"process_cpu_seconds_total", "process_resident_memory_bytes"} {
		if _, ok := got[name]; !ok {
			t.Errorf("no %s of the agent", name)
		}
	}
}

const (
	prefix   = "\x1b[31m<b>\"\\\n{}=,"
	mebibyte = 1 << 20
)

// hostile is a state of processes that are called, and have libraries, as is bad for
// whoever is careless with names.
func hostile() source {
	s := state.New()
	begin := time.Unix(1_700_000_000, 0)
	s.Apply(&record.Trace{Target: "every process", All: true, Start: begin, Boot: begin, APIs: []string{"", "cuMemAlloc_v2"}})
	names := []string{prefix, "\xff\xfe", strings.Repeat("ü", 5000), strings.Repeat("x", 10_000) + "1", strings.Repeat("x", 10_000) + "2", "__name__", "# HELP", ""}
	for i := range uint64(20) {
		name := names[i%uint64(len(names))]
		id := event.Process{PID: uint32(100 + i), Start: event.StartUnit}
		m := &snapshot.Mapping{Start: 0x1000, Limit: 0x2000, Path: "/" + name + ".so"}
		l := &snapshot.Location{Address: 0x1000, Mapping: m, Lines: []snapshot.Line{{Function: name}}}
		s.Apply(&record.Process{Process: id, Target: true, Name: name, FromStart: true, Who: snapshot.Who{Pod: prefix, Service: strings.Repeat("\x00", 9999)}})
		s.Apply(&record.Stack{ID: 1 + i, Process: id, Frames: []*record.Place{record.NewPlace(1+i, 0x1000, l, nil)}})
		s.Apply(&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Proc: id, TID: id.PID, Time: 10 + i, Stack: 1 + i, Addr: 4096, Size: mebibyte})
	}
	return source{s}
}

// Names of programs are text: nothing is lost, no line is made up, no value is long.
func TestHostileNames(t *testing.T) {
	m := New(Options{Source: hostile(), PerProcess: 7})
	text := scrape(t, m)
	got := values(t, text)
	if sum := total(got, namespace+"live_bytes"); sum != 20*mebibyte {
		t.Errorf("%v bytes are live", sum)
	}
	if n := got[namespace+"processes_without_series"]; n != 13 {
		t.Errorf("%v processes have no series", n)
	}
	if sum := total(got, namespace+"process_live_bytes"); sum != 7*mebibyte {
		t.Errorf("%v bytes are live in processes with series", sum)
	}
	if !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\x00") {
		t.Error("what does not print is served")
	}
	for k := range got {
		if len(k) > 8*maxLabel {
			t.Errorf("%d bytes: %s", len(k), k)
		}
	}
	again := values(t, scrape(t, m))
	for k := range got {
		if _, ok := again[k]; !ok {
			t.Errorf("gone: %s", k)
		}
	}
}

// A lost has totals with counters of loss.
type lost []loss.Counter

func (l lost) Totals() *state.Totals { return &state.Totals{Loss: l} }

// Loss is shown by layer and class, a counter with something that a user can do by itself.
func TestLoss(t *testing.T) {
	m := New(Options{Source: lost{{Name: "mappings_lost", Value: 3}, {Name: "functions_not_compared", Value: 4}, {Name: "tensor_sites_full", Value: 5}, {Name: "events_ring_full", Value: 6}},
		BPF: func() probes.RunTime {
			return probes.RunTime{Run: time.Second / 2, Measured: 10 * time.Second, Runs: 9}
		}})
	got := values(t, scrape(t, m))
	for k, want := range map[string]float64{`loss_total{class="late",layer="calls"}`: 7, `loss_total{class="full",layer="tensor"}`: 5, `loss_total{class="events_ring_full",layer="calls"}`: 6, "bpf_run_seconds_total": 0.5, "bpf_measured_seconds_total": 10, "bpf_runs_total": 9} {
		if got[namespace+k] != want {
			t.Errorf("%s is %v, want %v", k, got[namespace+k], want)
		}
	}
}

// Processes that are not seen are told by user and reason.
func TestNotSeen(t *testing.T) {
	m := New(Options{Source: hostile(), NotSeen: func() []probes.NotSeen {
		return []probes.NotSeen{{User: 1001, Why: "no free slot", Processes: 3}, {User: 1001, Why: "another", Processes: 1}, {User: 1<<32 - 1, Why: "another", Processes: 2}}
	}})
	got := values(t, scrape(t, m))
	for k, want := range map[string]float64{`{reason="no free slot",user="1001"}`: 3, `{reason="another",user="1001"}`: 1, `{reason="another",user="others"}`: 2} {
		if got[namespace+"processes_not_seen"+k] != want {
			t.Errorf("%s is %v, want %v", k, got[namespace+"processes_not_seen"+k], want)
		}
	}
}

// A live source is a state that a goroutine goes on with.
type live struct {
	mu    sync.Mutex
	state *state.State
}

func (l *live) Totals() *state.Totals {
	l.mu.Lock()
	v := l.state.View(state.Want{Totals: true})
	l.mu.Unlock()
	return v.Totals()
}

// Several scrape at once while processes come and go: each scrape is whole, and no counter
// falls from one to the next.
func TestScrapesWhileEventsArrive(t *testing.T) {
	l := &live{state: state.New()}
	begin := time.Unix(1_700_000_000, 0)
	l.state.Apply(&record.Trace{Target: "every process", All: true, Start: begin, Boot: begin, APIs: []string{"", "cuMemAlloc_v2"}})
	m := New(Options{Source: l, PerProcess: 3})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range uint64(3000) {
			id := event.Process{PID: uint32(100 + i), Start: event.StartUnit}
			l.mu.Lock()
			for _, r := range []record.Record{
				&record.Process{Process: id, Target: true, Name: "short", FromStart: true},
				&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Proc: id, TID: id.PID, Time: 10*i + 1, Addr: 4096, Size: mebibyte},
				&event.Event{Op: event.OpExit, Proc: id, Time: 10*i + 9},
			} {
				l.state.Apply(r)
			}
			if i%100 == 0 {
				l.state.Apply(&record.Reported{})
			}
			l.mu.Unlock()
		}
	}()
	var scrapers sync.WaitGroup
	for range 3 {
		scrapers.Go(func() {
			before := map[string]float64{}
			for over := false; !over; {
				select {
				case <-ended:
					over = true
				default:
				}
				now := values(t, scrape(t, m))
				for k, v := range before {
					if name, _, _ := strings.Cut(k, "{"); strings.HasSuffix(name, "_total") && !strings.Contains(name, "process_") && now[k] < v {
						t.Errorf("%s fell from %v to %v", k, v, now[k])
					}
				}
				before = now
			}
			if sum := total(before, namespace+"allocated_bytes_total"); sum != 3000*mebibyte {
				t.Errorf("%v bytes were allocated", sum)
			}
		})
	}
	scrapers.Wait()
}

// BenchmarkScrape is a scrape of 500 processes with 1,000,000 live allocations of 10,000
// call sites, without and with series of each process.
func BenchmarkScrape(b *testing.B) {
	s := state.New()
	recordtest.Crowd(500, 2000, 20, s.Apply)
	for _, each := range []int{0, 500} {
		b.Run(fmt.Sprintf("%d", each), func(b *testing.B) {
			h := New(Options{Source: source{s}, PerProcess: each}).Handler()
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				if w.Code != http.StatusOK || w.Body.Len() < 10_000+each*400 {
					b.Fatal(w.Code, w.Body.Len())
				}
			}
		})
	}
}

// A process whose tensors were seen in windows has their figures, and one without has none.
func TestWindows(t *testing.T) {
	s := state.New()
	begin, id, other := time.Unix(1_700_000_000, 0), event.Process{PID: 7, Start: event.StartUnit}, event.Process{PID: 8, Start: event.StartUnit}
	w := record.Window{Length: 2e9, Every: 60e9, Open: true}
	shut := w
	shut.Open = false
	for _, r := range []record.Record{
		&record.Trace{All: true, Start: begin, Boot: begin, APIs: []string{"", "cuMemAlloc_v2"}}, &record.Tensors{Window: shut},
		&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: 1e9, Proc: id, Addr: 1 << 30, Size: 64 << 20},
		&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: 1e9, Proc: other, Addr: 1 << 30, Size: 64 << 20},
		&record.Tensors{Time: 2e9, Window: w},
		&event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Time: 3e9, Proc: id, Addr: 1 << 30, Size: 1000, Handle: 5000, Part: 64 << 20},
		&event.Event{Op: event.OpTensorFree, Time: 3e9, Proc: id, Addr: 1 << 30, Size: 1000, Handle: 4000, Part: 64 << 20},
		&record.Tensors{Time: 5e9, Window: shut}, &record.Moment{Time: 6e9, Drained: true},
	} {
		s.Apply(r)
	}
	got := values(t, scrape(t, New(Options{Source: &live{state: s}, PerProcess: 3})))
	const labels = `{container="",gpu="cuda:0",job="",namespace="",pid="7",pod="",process="",service=""}`
	for name, want := range map[string]float64{"seconds_total": 3, "steps_total": 0, "tensors_total": 1, "tensor_bytes_total": 1000, "peak_bytes": 5000} {
		if v, ok := got[namespace+"process_window_"+name+labels]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	for k := range got {
		if strings.Contains(k, "process_window_") && !strings.Contains(k, `pid="7"`) {
			t.Error(k)
		}
	}
}
