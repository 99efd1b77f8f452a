package server

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const recordings = "../../../test/recordings/"

// A held is a state as a Source, which records may come to.
type held struct {
	mu    sync.Mutex
	state *state.State
	views int // taken
	slow  chan struct{}
}

func (h *held) View(w state.Want) *state.View {
	h.mu.Lock()
	h.views++
	slow := h.slow
	h.mu.Unlock()
	if slow != nil {
		<-slow
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.View(w)
}

func (h *held) Totals() *state.Totals {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.View(state.Want{Totals: true}).Totals()
}

func (h *held) Done() <-chan struct{} { return nil }

func (h *held) apply(all ...record.Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range all {
		h.state.Apply(r)
	}
}

// recorded is the end of a recording of a real program on NVIDIA H200s.
func recorded(t testing.TB, name string) *held {
	t.Helper()
	s, err := replay.Play(recordings+name+".gmt", replay.Options{At: replay.End})
	if err != nil {
		t.Fatal(err)
	}
	return &held{state: s}
}

// A served is a server that runs for a test.
type served struct {
	*Server
	t      testing.TB
	url    string
	client *http.Client
	stop   func() // ends the server, once
}

// of is New with what an agent has that just began, where a test does not say.
func of(o Options) (*Server, error) {
	begun := make(chan struct{})
	close(begun)
	well := func() error { return nil }
	all := Options{
		Begun: begun, Metrics: http.NotFoundHandler(), Ready: well, Healthy: well, NotSeen: func() []string { return nil },
		Alerts: func() []alert.Alert { return nil }, Leaks: func() []leaks.Leak { return nil },
		Recording: func() (string, time.Time) { return "", time.Time{} },
		Labels:    func(*snapshot.Process) map[string]string { return nil }, Warn: func(string) {},
	}
	to, from := reflect.ValueOf(&all).Elem(), reflect.ValueOf(o)
	for i := range from.NumField() {
		if !from.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return New(all)
}

func serve(t testing.TB, o Options, before ...func(*Server)) *served {
	t.Helper()
	if o.Address == "" {
		o.Address = "localhost:0"
	}
	if o.WebConfig == "" {
		o.Insecure = true
	}
	if o.Warn == nil {
		o.Warn = func(text string) { t.Log(text) }
	}
	s, err := of(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range before {
		f(s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	transport := &http.Transport{}
	stop := sync.OnceFunc(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return &served{Server: s, t: t, stop: stop, url: "http://" + s.tcp.Addr().String(), client: &http.Client{Transport: transport}}
}

// ask returns the answer to a request, and its body.
func (s *served) ask(method, path string, edit ...func(*http.Request)) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range edit {
		e(r)
	}
	answer, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer, string(b)
}

// get returns the body of an answer that is to have a status.
func (s *served) get(status int, path string, edit ...func(*http.Request)) string {
	s.t.Helper()
	answer, body := s.ask(http.MethodGet, path, edit...)
	if answer.StatusCode != status {
		s.t.Fatalf("%s: %s, want %d: %.300s", path, answer.Status, status, body)
	}
	return body
}

// with sets a header.
func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// file writes a file for a test.
func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func wants(t testing.TB, what, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("%s: %.500q lacks %q", what, got, part)
		}
	}
}

// lossOf is a counter of the server's.
func (s *served) lossOf(name string) uint64 {
	s.t.Helper()
	for _, c := range s.Loss() {
		if c.Name == name {
			return c.Value
		}
	}
	s.t.Fatalf("no counter %s", name)
	return 0
}
