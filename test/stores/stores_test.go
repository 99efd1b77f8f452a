// Package stores has an OpenTelemetry collector take what is pushed: recordings of real programs
// on NVIDIA H200s.
package stores

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
	otlp "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/push"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// recordings are of one process, of two with tensors, and of what a driver took.
var recordings = []string{"torch_native", "fsdp", "pools"}

// A source plays a recording, a part of it before each report.
type source struct {
	mu      sync.Mutex
	reader  *record.Reader
	state   *state.State
	reports int
	ended   bool
	latest  map[figure]int64 // what the last report showed
	ever    map[figure]int64 // what was allocated up to then
}

// A figure is one value of one process.
type figure struct{ pid, value string }

const records = 3000

func (s *source) Report(want state.Want) *state.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range records {
		r, err := s.reader.Next()
		if errors.Is(err, io.EOF) {
			s.ended = true
			break
		}
		if err != nil {
			panic(err)
		}
		if _, reported := r.(*record.Reported); !reported { // it was to somebody else
			s.state.Apply(r)
		}
	}
	for id := range s.state.Known {
		s.state.Apply(&record.Process{Process: id, Who: snapshot.Who{Service: "llm", Pod: "train-0"}})
	}
	v := s.state.View(want)
	s.latest = figures(v.Snapshot(), false)
	for f, n := range figures(v.Snapshot(), true) {
		s.ever[f] += n
	}
	s.state.Apply(&record.Reported{})
	s.reports++
	return v
}

// figures are what processes allocated, or what they hold, of memory on GPUs; and what else they hold.
func figures(s *snapshot.Snapshot, allocated bool) map[figure]int64 {
	out := map[figure]int64{}
	for i := range s.Samples {
		x := &s.Samples[i]
		add := func(name string, n int64) {
			if n != 0 && strings.HasPrefix(name, "alloc_") == allocated {
				out[figure{fmt.Sprint(x.PID), name}] += n
			}
		}
		if !snapshot.OnGPU(x.Kind) {
			add("host_space", s.Meta.Held(&x.Values))
			continue
		}
		for _, v := range snapshot.AllValues {
			if !v.Failed {
				add(v.Name, *v.Of(&x.Values))
			}
		}
	}
	return out
}

// played tells whether the whole recording was reported.
func (s *source) played() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// A store adds up what it receives: what was allocated, and what was held last.
type store struct {
	mu     sync.Mutex
	ever   map[figure]int64
	latest map[string]map[figure]int64 // by process
	labels map[string]map[string]string
	seen   map[string]bool // identities
	wrong  []string
}

func newStore() *store {
	return &store{ever: map[figure]int64{}, latest: map[string]map[figure]int64{}, labels: map[string]map[string]string{}, seen: map[string]bool{}}
}

func (s *store) complain(format string, args ...any) {
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// add adds one value of one profile. When is the moment that it is of.
func (s *store) add(pid, value string, n int64) {
	f := figure{pid, value}
	if strings.HasPrefix(value, "alloc_") {
		s.ever[f] += n
	} else if n != 0 {
		s.latest[pid][f] += n
	}
}

func (s *store) series(labels map[string]string) {
	s.labels[labels["pid"]] = labels
	s.latest[labels["pid"]] = map[figure]int64{}
}

func (s *store) once(id string) {
	if s.seen[id] || id == "" {
		s.complain("identity %q again", id)
	}
	s.seen[id] = true
}

// holds compares with what was pushed.
func (s *store) holds(t *testing.T, from *source) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	from.mu.Lock()
	defer from.mu.Unlock()
	for _, w := range s.wrong {
		t.Error(w)
	}
	latest := map[figure]int64{}
	for _, of := range s.latest {
		maps.Copy(latest, of)
	}
	if drop(from.latest); !maps.Equal(drop(latest), from.latest) {
		t.Errorf("held %v, pushed %v", latest, from.latest)
	}
	if drop(from.ever); !maps.Equal(drop(s.ever), from.ever) {
		t.Errorf("allocated %v, pushed %v", s.ever, from.ever)
	}
	if len(from.ever) == 0 || len(from.latest) == 0 {
		t.Error("nothing was pushed")
	}
	for pid, l := range s.labels {
		if l["service_name"] != "llm" || l["pid"] != pid || l["process"] == "" || l["pod"] != "train-0" {
			t.Errorf("labels %v", l)
		}
	}
}

func drop(m map[figure]int64) map[figure]int64 {
	maps.DeleteFunc(m, func(_ figure, n int64) bool { return n == 0 })
	return m
}

// known complains of fields that a message does not have.
func (s *store) known(m proto.Message) {
	_ = protorange.Range(m.ProtoReflect(), func(v protopath.Values) error {
		if m, ok := v.Index(-1).Value.Interface().(protoreflect.Message); ok && len(m.GetUnknown()) != 0 {
			s.complain("%v has %d unknown bytes", m.Descriptor().FullName(), len(m.GetUnknown()))
		}
		return nil
	})
}

// export takes what an OpenTelemetry collector received.
func (s *store) export(d *otlp.ProfilesData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known(d)
	dict := d.Dictionary
	if len(dict.StringTable) == 0 || dict.StringTable[0] != "" || !proto.Equal(dict.LocationTable[0], &otlp.Location{}) || !proto.Equal(dict.StackTable[0], &otlp.Stack{}) ||
		!proto.Equal(dict.MappingTable[0], &otlp.Mapping{}) || !proto.Equal(dict.FunctionTable[0], &otlp.Function{}) {
		s.complain("the first entries of the dictionary are not those of nothing")
	}
	for _, r := range d.ResourceProfiles {
		named := map[string]string{}
		for _, a := range r.Resource.Attributes { // the collector puts texts into its dictionary
			name := a.Key + dict.StringTable[a.KeyStrindex]
			named[name] = a.Value.GetStringValue() + dict.StringTable[a.Value.GetStringValueStrindex()]
			if name == "process.pid" {
				named[name] = fmt.Sprint(a.Value.GetIntValue())
			}
		}
		labels := map[string]string{"service_name": named["service.name"], "pid": named["process.pid"], "process": named["process.executable.name"], "pod": named["k8s.pod.name"]}
		s.series(labels)
		for _, scope := range r.ScopeProfiles {
			for _, p := range scope.Profiles {
				s.once(fmt.Sprintf("%x", p.ProfileId))
				value := dict.StringTable[p.SampleType.TypeStrindex]
				if strings.HasPrefix(value, "alloc_") != (p.DurationNano != 0) {
					s.complain("%s lasts %d ns", value, p.DurationNano)
				}
				for _, x := range p.Samples {
					stack := dict.StackTable[x.StackIndex].LocationIndices
					if len(stack) == 0 {
						s.complain("a sample of %s has no stack", value)
					}
					for _, l := range stack {
						for _, line := range dict.LocationTable[l].Lines {
							if dict.StringTable[dict.FunctionTable[line.FunctionIndex].NameStrindex] == "" {
								s.complain("a frame has no name")
							}
						}
					}
					s.add(labels["pid"], value, x.Values[0])
				}
			}
		}
	}
}

// pushed plays a recording to a target until all of it was taken.
func pushed(t *testing.T, name, url string) *source {
	t.Helper()
	r, err := record.Open(filepath.Join("..", "recordings", name+".gmt"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	from := &source{reader: r, state: state.New(), ever: map[figure]int64{}}
	p, err := push.New(push.Options{Source: from, Interval: time.Second, Version: "test",
		Targets: []string{url},
		Warn:    func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	for !from.played() && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	cancel() // it pushes once more
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if from.reports < 2 {
		t.Errorf("%d reports", from.reports)
	}
	for _, c := range p.Loss() {
		if c.Value != 0 {
			t.Errorf("%s = %d", c.Name, c.Value)
		}
	}
	return from
}

// TestCollector pushes to an OpenTelemetry collector, over HTTP and over gRPC.
func TestCollector(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "otelcol")
	begin := time.Now()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./otelcol")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("built in %v", time.Since(begin))
	for _, scheme := range []string{"http", "grpc"} {
		for i, name := range recordings {
			t.Run(scheme+" "+name, func(t *testing.T) {
				lines := filepath.Join(dir, fmt.Sprint(scheme, i))
				addr := collector(t, program, scheme, lines)
				from := pushed(t, name, scheme+"://"+addr)
				s := newStore()
				data, err := os.ReadFile(lines)
				if err != nil {
					t.Fatal(err)
				}
				for line := range bytes.Lines(data) {
					p, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles(line)
					if err != nil {
						t.Fatal(err)
					}
					wire, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(p)
					if err != nil {
						t.Fatal(err)
					}
					d := &otlp.ProfilesData{}
					if err := proto.Unmarshal(wire, d); err != nil {
						t.Fatal(err)
					}
					s.export(d)
				}
				s.holds(t, from)
			})
		}
	}
}

// collector starts one, and returns where it listens.
func collector(t *testing.T, program, protocol, lines string) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf(`
receivers: {otlp: {protocols: {%s: {endpoint: %q}}}}
exporters: {lines: {path: %q}, debug: {verbosity: detailed}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {profiles: {receivers: [otlp], exporters: [lines, debug]}}
`, protocol, addr, lines)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config", config, "--feature-gates", "service.profilesSupport")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := <-ended; err != nil {
			t.Errorf("%v\n%s", err, out.Bytes()[:min(out.Len(), 4000)])
		}
		if !t.Failed() && !strings.Contains(out.String(), "cuMemAlloc") {
			t.Error("the collector printed no frame of a profile")
		}
	})
	for begin := time.Now(); time.Since(begin) < 20*time.Second && len(ended) == 0; time.Sleep(20 * time.Millisecond) {
		if c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr); err == nil {
			c.Close()
			return addr
		}
	}
	t.Fatal("the collector does not listen")
	return ""
}
