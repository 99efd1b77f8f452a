package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
	"github.com/gpumemtrace/gpumemtrace/internal/top"
)

// What top shows of an agent is what it shows of the trace itself, of recordings of real
// programs, the live allocations of each stack too.
func TestRemote(t *testing.T) {
	for _, name := range []string{"fsdp", "jax", "accelerate"} {
		h := recorded(t, name)
		s := serve(t, Options{Source: h})
		remote, err := live.Remote(live.RemoteOptions{Address: s.url})
		if err != nil {
			t.Fatal(err)
		}
		traced := live.NewTraceSource(h)
		var shown []int
		page := func(source live.Source) (string, *live.Snapshot) {
			l, err := source.Snapshot(live.Query{})
			if err != nil {
				t.Fatal(err)
			}
			l.Cost = nil
			p := live.NewTracker().Add(l)
			var text, document bytes.Buffer
			if err := top.Text(&text, p, -1, 120, true); err != nil {
				t.Fatal(err)
			}
			if err := p.Document(-1).Write(&document); err != nil {
				t.Fatal(err)
			}
			shown = append(shown, len(p.Stacks))
			return text.String() + document.String(), l
		}
		want, look := page(traced)
		got, far := page(remote)
		if d := cmp.Diff(want, got); d != "" || len(want) < 1000 {
			t.Errorf("%s: %.2000s", name, d)
		}
		if shown[0] != shown[1] || shown[0] == 0 {
			t.Errorf("%s: stacks %v", name, shown)
		}
		of := func(source live.Source, l *live.Snapshot, i int) []snapshot.Allocation {
			got, err := source.Snapshot(live.Query{Allocations: &l.Sites[i]})
			if err != nil {
				t.Fatal(err)
			}
			return got.Snapshot.Live
		}
		rows := 0
		for i := range min(len(look.Sites), 20) {
			a, b := of(traced, look, i), of(remote, far, i)
			rows += len(a)
			if d := cmp.Diff(a, b); d != "" {
				t.Errorf("%s, stack %d: %s", name, i, d)
			}
		}
		if rows == 0 {
			t.Errorf("%s: no live allocations", name)
		}
	}
}

// The API's document is the one that top --json prints.
func TestTopAPI(t *testing.T) {
	h := recorded(t, "accelerate")
	s := serve(t, Options{Source: h})
	answer, body := s.ask(http.MethodGet, "/api/v1/top?stacks=7")
	got := livetest.Read[live.Now](t, body)
	if answer.Header.Get("Content-Type") != "application/json" || len(got.Now.Stacks) != 7 || got.Now.Cost == nil {
		t.Errorf("%v, %d stacks", answer.Header, len(got.Now.Stacks))
	}
	l, err := live.NewTraceSource(h).Snapshot(live.Query{})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := live.NewTracker().Add(l).Document(7).Write(&b); err != nil {
		t.Fatal(err)
	}
	want := livetest.Read[live.Now](t, b.String())
	got.Now.Cost, want.Now.Cost = nil, nil
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Rates and growth are of what all who ask have seen: one Tracker serves them all.
func TestRates(t *testing.T) {
	h := begun()
	h.alloc(2*time.Second, 1, 1<<20, 100)
	h.at(3 * time.Second)
	s := serve(t, Options{Source: h})
	ask := func() live.Now { return livetest.Read[live.Now](t, s.get(http.StatusOK, "/api/v1/top")).Now }
	ask()
	h.alloc(4*time.Second, 1, 2<<20, 500)
	h.at(5 * time.Second)
	time.Sleep(minAge + 20*time.Millisecond)
	if d := ask(); d.Interval != 2*time.Second || d.Stacks[0].Rate != 250 || d.Stacks[0].Grown != 500 {
		t.Errorf("in %v: %v a second, grown by %d", d.Interval, d.Stacks[0].Rate, d.Stacks[0].Grown)
	}
}

// What goes wrong between top and an agent is said.
func TestRemoteErrors(t *testing.T) {
	cert, key := certificateFiles(t, t.TempDir(), "localhost")
	s := serve(t, Options{Source: begun(), WebConfig: writeWeb(t, "tls_server_config: {cert_file: "+cert+", key_file: "+key+"}")})
	secure := strings.Replace(s.url, "http://", "https://", 1)
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	pool.AppendCertsFromPEM(pem)
	known := &tls.Config{RootCAs: pool}
	look := func(o live.RemoteOptions) error {
		r, err := live.Remote(o)
		if err != nil {
			return err
		}
		_, err = r.Snapshot(live.Query{})
		return err
	}
	if err := look(live.RemoteOptions{Address: secure, User: "ada", Password: password, TLS: known}); err != nil {
		t.Error(err)
	}
	for want, o := range map[string]live.RemoteOptions{
		"certificate":                     {Address: secure, User: "ada", Password: password},
		"it wants a password":             {Address: secure, TLS: known},
		"it has another user or password": {Address: secure, TLS: known, User: "ada", Password: password + "x"},
		"cannot be asked":                 {Address: "http://127.0.0.1:1"},
		"is no address":                   {Address: "localhost:9844"},
		"command lines":                   {Address: "https://me:password@localhost"},
		"use https":                       {Address: "http://192.0.2.1:9844", User: "ada", Password: password},
		"400 Bad Request":                 {Address: s.url, User: "ada", Password: password},
		"no agent's API":                  {Address: "http://" + answers(t, http.StatusNotFound, "")},
		"302 Found":                       {Address: "http://" + answers(t, http.StatusFound, "elsewhere")},
		"read a snapshot: unexpected EOF": {Address: "http://" + answers(t, http.StatusOK, `{"schema_version":3`)},
		"version 2":                       {Address: "http://" + answers(t, http.StatusOK, `{"schema_version":2}`)},
		`\x1b[2J`:                         {Address: "http://" + answers(t, http.StatusTeapot, "\x1b[2J")},
	} {
		if err := look(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// answers is the address of what answers all alike.
func answers(t *testing.T, status int, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "https://elsewhere.example")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
