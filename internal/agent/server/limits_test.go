package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// How many ask at once does not matter: one snapshot is taken for all, and one profile made.
func TestShared(t *testing.T) {
	h := recorded(t, "accelerate")
	s := serve(t, Options{Source: h})
	var made atomic.Int32
	var all sync.WaitGroup
	at, err := s.looks.now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		all.Go(func() {
			if _, err := s.looks.of(t.Context(), at, "x", func() ([]byte, error) {
				made.Add(1)
				time.Sleep(10 * time.Millisecond)
				return nil, nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}

	s.looks.forget()
	hold := make(chan struct{})
	source := &counting{Source: live.NewTraceSource(h), hold: hold}
	s.looks.work <- struct{}{}
	s.looks.source = source
	<-s.looks.work
	for range 50 {
		all.Go(func() { s.get(http.StatusOK, "/debug/pprof/gpumem?gpu=0") })
	}
	for end := time.Now().Add(5 * time.Minute); len(s.requests) < 50 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	close(hold)
	all.Wait()
	if n := source.n.Load(); n > 5 {
		t.Errorf("%d looks for 50 requests at once", n)
	}
}

// counting counts snapshots, which wait for hold.
type counting struct {
	live.Source
	n    atomic.Int32
	hold chan struct{}
}

func (c *counting) Snapshot(q live.Query) (*live.Snapshot, error) {
	c.n.Add(1)
	<-c.hold
	return c.Source.Snapshot(q)
}

// What cannot be shared waits in a short line, and the rest is told to come again.
func TestBusy(t *testing.T) {
	h := begun()
	h.alloc(2*time.Second, 1, 1<<20, 100)
	s := serve(t, Options{Source: h})
	s.get(http.StatusOK, "/api/v1/look")
	hold := make(chan struct{})
	s.looks.work <- struct{}{}
	s.looks.source = &counting{Source: s.looks.source, hold: hold}
	<-s.looks.work
	var all sync.WaitGroup
	var refused atomic.Int32
	const n = maxWaiting + 10
	for i := range n {
		all.Go(func() {
			answer, body := s.ask(http.MethodGet, "/api/v1/look?site="+live.SiteText(&ledger.SiteKey{Stack: uint64(i)}))
			if answer.StatusCode == http.StatusServiceUnavailable {
				refused.Add(1)
				if answer.Header.Get("Retry-After") == "" || !strings.Contains(body, "busy") {
					t.Errorf("%v, %s", answer.Header, body)
				}
			}
		})
	}
	for end := time.Now().Add(5 * time.Minute); refused.Load() < n-maxWaiting && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	close(hold)
	all.Wait()
	if refused.Load() != n-maxWaiting {
		t.Errorf("%d of %d were refused, want %d", refused.Load(), n, n-maxWaiting)
	}
	for _, c := range s.Loss() {
		if c.Name == "http_requests_refused" && c.Value != uint64(refused.Load()) {
			t.Errorf("%s is %d", c.Name, c.Value)
		}
	}
}

// A trace that does not answer is not waited for.
func TestLate(t *testing.T) {
	s := serve(t, Options{Source: begun()}, func(s *Server) { s.looks.patience = time.Millisecond })
	hold := make(chan struct{})
	defer close(hold)
	s.looks.source = &counting{Source: s.looks.source, hold: hold}
	if body := s.get(http.StatusServiceUnavailable, "/api/v1/top"); !strings.Contains(body, "does not answer") {
		t.Error(body)
	}
}

// While the trace does not answer, and as many ask as may, the server itself does.
func TestAllWait(t *testing.T) {
	s := serve(t, Options{Source: begun(), WebConfig: writeWeb(t)}, func(s *Server) { s.looks.patience = time.Hour })
	hold := make(chan struct{})
	s.looks.source = &counting{Source: s.looks.source, hold: hold}
	may := as("ada", password)
	s.get(http.StatusOK, "/debug/pprof/", may) // from now on the password need not be checked
	var all sync.WaitGroup
	for range maxRequests {
		all.Go(func() { s.get(http.StatusOK, "/api/v1/top", may) })
	}
	for len(s.requests) < maxRequests {
		time.Sleep(time.Millisecond)
	}
	for range 5 {
		if body := s.get(http.StatusServiceUnavailable, "/api/v1/top", may); !strings.Contains(body, "busy") {
			t.Error(body)
		}
	}
	s.get(http.StatusOK, "/healthz")
	s.get(http.StatusOK, "/readyz")
	s.get(http.StatusUnauthorized, "/api/v1/top")
	close(hold)
	all.Wait()
}

// Windows are bounded too, and one that nobody waits for ends.
func TestManyWindows(t *testing.T) {
	s := serve(t, Options{Source: begun()})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var refused atomic.Int32
	for range maxWindows + 5 {
		all.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/debug/pprof/gpumem?seconds=600", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			if answer, err := s.client.Do(r); err == nil {
				answer.Body.Close()
				if answer.StatusCode == http.StatusServiceUnavailable {
					refused.Add(1)
				}
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for end := time.Now().Add(5 * time.Minute); refused.Load() < 5 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	cancel()
	all.Wait()
	if refused.Load() != 5 {
		t.Errorf("%d refused", refused.Load())
	}
	for end := time.Now().Add(5 * time.Minute); len(s.windows) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d wait on", len(s.windows))
		}
	}
}

// Who waits for a window is told when the server ends, and the end waits for nobody else.
func TestEnd(t *testing.T) {
	s, err := of(Options{Source: begun(), Address: "localhost:0", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	answers := make(chan string, 1)
	go func() {
		answer, err := http.Get("http://" + s.Addresses()[0] + "/debug/pprof/gpumem?seconds=600")
		if err != nil {
			answers <- err.Error()
			return
		}
		defer answer.Body.Close()
		answers <- answer.Status
	}()
	idle, err := net.Dial("tcp", s.Addresses()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	for len(s.windows) == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := <-answers; !strings.HasPrefix(got, "503") {
		t.Error(got)
	}
	if _, err := net.Dial("tcp", s.Addresses()[0]); err == nil {
		t.Error("it listens on")
	}
}

// When one listener fails, the server ends, and nobody listens at the other one.
func TestListenerFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := ListenSocket(path, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := of(Options{Source: begun(), Socket: l, Address: "localhost:0", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	s.tcp.Close()
	if err := s.Run(t.Context()); err == nil {
		t.Error("no error")
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		t.Error("it listens on")
	}
}

// A counted is a listener that counts its open connections. The server's own states of connections come too
// late: it closes one, which lets the next one in, before it says so.
type counted struct {
	net.Listener
	mu         sync.Mutex
	open, most int
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	l.most = max(l.most, l.open)
	return &countedConn{c, l}, nil
}

type countedConn struct {
	net.Conn
	of *counted
}

func (c *countedConn) Close() error {
	err := c.Conn.Close()
	if err == nil { // the first time
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.open--
	}
	return err
}

// Who connects too often at the socket has to wait. Until then a connection costs the agent no file.
func TestManyConnections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := ListenSocket(path, "")
	if err != nil {
		t.Fatal(err)
	}
	counted := &counted{Listener: l}
	s := serve(t, Options{Source: begun(), Socket: counted})
	all := make([]net.Conn, maxConnected+50)
	for i := range all {
		if all[i], err = net.Dial("unix", path); err != nil {
			t.Fatal(err)
		}
	}
	s.get(http.StatusOK, "/healthz") // over TCP
	for _, c := range all {
		c.Close()
	}
	c := http.Client{Transport: &http.Transport{DialContext: dialsSocket(path), DisableKeepAlives: true}}
	answer, err := c.Get("http://localhost/healthz")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	counted.mu.Lock()
	defer counted.mu.Unlock()
	if counted.most > maxConnected {
		t.Errorf("%d connections at once, at most %d", counted.most, maxConnected)
	}
}

// Who says nothing, or slowly, is not waited for; who says too much is not heard.
func TestSlowAndLarge(t *testing.T) {
	s := serve(t, Options{Source: begun(), WebConfig: writeWeb(t)}, func(s *Server) {
		s.http.ReadHeaderTimeout, s.http.ReadTimeout = 200*time.Millisecond, 400*time.Millisecond
	})
	for name, text := range map[string]string{
		"nothing": "", "half a header": "GET / HTTP/1.1\r\nHost: loc", "half a body": "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nx",
		"a large body": "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 4096),
	} {
		c, err := net.Dial("tcp", s.Addresses()[0])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, text)
		if err := c.SetReadDeadline(time.Now().Add(5 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("%s: it waits on", name)
		}
		if strings.Contains(string(b), " 200 ") {
			t.Errorf("%s: %s", name, b)
		}
	}
}

// A server that takes another's place knows its past.
func TestBefore(t *testing.T) {
	h := begun()
	h.alloc(2*time.Second, 1, 1<<20, 100)
	h.at(3 * time.Second)
	first, err := of(Options{Source: h, Address: "localhost:0", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	first.history.take(h.Totals())
	first.keep(failureOf("a", "b"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := first.Run(ctx); err != nil {
		t.Fatal(err)
	}
	h.at(4 * time.Second)
	first.history.presences.lost.Add(lossPresences, 1)
	s := serve(t, Options{Source: h, Before: first})
	if n := s.lossOf("http_history_processes_full"); n != 0 {
		t.Errorf("%d of the server before", n)
	}
	s.keep(failureOf("c", "d"))
	if got := s.listed(); len(got) != 2 || got[0].Number != 2 || got[1].Process != "a" {
		t.Errorf("%+v", got)
	}
	for end := time.Now().Add(5 * time.Minute); len(s.history.since(0).Points) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", s.history.since(0))
		}
	}
}

// A trace that does not see every process is ready, and says so to everybody.
func TestReadySaysWhatIsNotSeen(t *testing.T) {
	lines := []string{"3 processes of user 1001: no free slot", "one \x1b[2Jline"}
	s := serve(t, Options{Source: begun(), WebConfig: writeWeb(t), NotSeen: func() []string { return lines }})
	if got, want := s.get(http.StatusOK, "/readyz"), "ready\nnot seen: 3 processes of user 1001: no free slot\nnot seen: "; !strings.HasPrefix(got, want) || strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
	lines = slices.Repeat(lines[:1], maxNotSeen+5)
	if got := s.get(http.StatusOK, "/readyz"); strings.Count(got, "\n") != maxNotSeen+2 || !strings.HasSuffix(got, "\nnot seen: others, in 5 more lines\n") {
		t.Errorf("%q", got)
	}
	lines = nil
	if got := s.get(http.StatusOK, "/readyz"); got != "ready\n" {
		t.Errorf("%q", got)
	}
}

// Before a trace has begun nothing is asked of it, who may read is told to come again, and
// everybody hears why.
func TestBegins(t *testing.T) {
	begins := make(chan struct{})
	h := begun()
	var scrapes atomic.Int32
	s := serve(t, Options{
		Source: &early{h, begins, t}, Begun: begins, WebConfig: writeWeb(t),
		Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { scrapes.Add(1) }),
		Ready: func() error {
			select {
			case <-begins:
				return nil
			default:
				return errors.New("it begins")
			}
		},
	})
	may := as("ada", password)
	for _, path := range []string{"/", "/metrics", "/api/v1/top", "/debug/pprof/gpumem"} {
		s.get(http.StatusUnauthorized, path)
		answer, body := s.ask(http.MethodGet, path, may)
		if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" || !strings.Contains(body, "not begun") {
			t.Errorf("%s: %s, %v, %s", path, answer.Status, answer.Header, body)
		}
	}
	if got := s.get(http.StatusServiceUnavailable, "/readyz"); got != "not ready: it begins\n" {
		t.Errorf("%q", got)
	}
	s.get(http.StatusOK, "/healthz")
	close(begins)
	for _, path := range []string{"/", "/metrics", "/api/v1/top", "/debug/pprof/gpumem"} {
		s.get(http.StatusOK, path, may)
	}
	s.get(http.StatusOK, "/readyz")
	if scrapes.Load() != 1 {
		t.Errorf("%d scrapes", scrapes.Load())
	}
	for _, c := range s.Loss() {
		if c.Value != 0 {
			t.Errorf("%s is %d", c.Name, c.Value)
		}
	}
}

// An early one must not be asked before it has begun.
type early struct {
	Source
	begun <-chan struct{}
	t     *testing.T
}

func (e *early) check() {
	select {
	case <-e.begun:
	default:
		e.t.Error("it is asked before it has begun")
	}
}

func (e *early) View(w state.Want) *state.View { e.check(); return e.Source.View(w) }
func (e *early) Totals() *state.Totals         { e.check(); return e.Source.Totals() }

// Who is not well says why, and goes on.
func TestUnwell(t *testing.T) {
	var why atomic.Value
	why.Store("")
	says := func() error {
		if text := why.Load().(string); text != "" {
			return errors.New(text)
		}
		return nil
	}
	s := serve(t, Options{Source: begun(), Ready: says, Healthy: says})
	for path, well := range map[string]string{"/healthz": "ok", "/readyz": "ready"} {
		why.Store("")
		if got := s.get(http.StatusOK, path); got != well+"\n" {
			t.Errorf("%q", got)
		}
		why.Store("a reason")
		if got := s.get(http.StatusServiceUnavailable, path); got != "not "+well+": a reason\n" {
			t.Errorf("%q", got)
		}
		s.get(http.StatusOK, "/api/v1/top")
	}
}
