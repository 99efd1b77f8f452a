package push

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/outbox"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// listening serves HTTP/1.1 and, unencrypted, HTTP/2.
func listening(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// accept answers as a target does that took everything.
func accept(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	switch kind := r.Header.Get("Content-Type"); kind {
	case "application/grpc":
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write(make([]byte, 5))
		w.Header().Set("Grpc-Status", "0")
	default:
		w.Header().Set("Content-Type", kind)
	}
}

// sending returns a sender to a server, which does not sleep but notes for how long it
// would.
func sending(t *testing.T, target string, o Options) (*sender, *waits) {
	t.Helper()
	set := loss.New(causes)
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	h, err := openHeaders(o.HeaderFile, o.Warn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSender(target, &o, h, set, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	w := &waits{}
	s.Wait = w.sleep
	return s, w
}

type waits struct {
	mu  sync.Mutex
	all []time.Duration
}

func (w *waits) sleep(_ context.Context, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, d)
}

// drain sends what is queued.
func drain(t *testing.T, s *sender) {
	t.Helper()
	s.End()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(t.Context())
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Minute):
		t.Fatal("it still sends")
	}
}

// over returns a server's URL for OTLP over HTTP or gRPC.
func over(protocol, url string) string {
	if protocol == "grpc" {
		return strings.Replace(url, "http", "grpc", 1)
	}
	return url
}

// Each outcome of a request is told apart, for both protocols.
func TestAnswers(t *testing.T) {
	grpc := func(status, message string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/grpc+proto")
			w.Header().Set("Grpc-Status", status)
			w.Header().Set("Grpc-Message", message)
		}
	}
	plain := func(code int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	framed := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = io.WriteString(w, body)
			w.Header().Set("Grpc-Status", "0")
		}
	}
	zipped := func(msg []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			z, _ := compress(func(w io.Writer) error { _, err := w.Write(msg); return err })
			w.Header().Set("Grpc-Encoding", "gzip")
			framed(string(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(z))))+string(z))(w, r)
		}
	}
	const page = "<html>welcome to the network, please log in"
	for _, c := range []struct {
		name, protocol string
		server         http.HandlerFunc
		want           outbox.Outcome
		refused        int
		says           string
	}{
		{"taken", "grpc", accept, outbox.Taken, 0, ""},
		{"taken", "http", accept, outbox.Taken, 0, ""},
		{"garbage", "http", plain(200, "application/x-protobuf", "\x0a\xff"), outbox.Failed, 0, "not the expected message"},
		{"garbage", "grpc", framed("\x00\x00\x00\x00\x09abc"), outbox.Failed, 0, "protocol error"},
		{"compressed, it says", "grpc", framed("\x01\x00\x00\x00\x00"), outbox.Failed, 0, "protocol error"},
		{"compressed", "grpc", zipped(nil), outbox.Taken, 0, ""},
		{"compressed, endless", "grpc", zipped(make([]byte, 10<<20)), outbox.Failed, 0, "larger than"},
		{"no frame", "grpc", framed(""), outbox.Failed, 0, "zero messages"},
		{"a page", "http", plain(200, "text/html", page), outbox.Failed, 0, "not the expected message"},
		{"a page", "grpc", plain(200, "text/html", page), outbox.Failed, 0, "content-type"},
		{"no status", "grpc", plain(200, "application/grpc", "\x00\x00\x00\x00\x00"), outbox.Failed, 0, "protocol error"},
		{"a part", "http", plain(200, "application/x-protobuf", "\x0a\x06\x08\x02\x12\x02no"), outbox.Taken, 2, `"no"`},
		{"more than all", "http", plain(200, "application/x-protobuf", "\x0a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), outbox.Taken, 3, ""},
		{"less than none", "http", plain(200, "application/x-protobuf", "\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), outbox.Taken, 0, ""},
		{"bad request", "http", plain(400, "application/json", `{"code":"invalid_argument"}`+"\x1b[2J"), outbox.Refused, 3, `invalid_argument`},
		{"unauthorized", "http", plain(401, "text/plain", ""), outbox.Refused, 3, "401"},
		{"elsewhere", "http", plain(301, "text/plain", ""), outbox.Refused, 3, "301"},
		{"slow down", "http", plain(429, "text/plain", ""), outbox.Busy, 0, "429"},
		{"timeout", "http", plain(408, "text/plain", ""), outbox.Busy, 0, "408"},
		{"unavailable", "http", plain(503, "text/plain", ""), outbox.Busy, 0, "503"},
		{"broken", "http", plain(500, "text/plain", ""), outbox.Failed, 0, "500"},
		{"invalid", "grpc", grpc("3", "no%20name"), outbox.Refused, 3, `"no name"`},
		{"unauthenticated", "grpc", grpc("16", "no%20token"), outbox.Refused, 3, `"no token"`},
		{"there already", "grpc", grpc("6", ""), outbox.Taken, 0, ""},
		{"unavailable", "grpc", grpc("14", ""), outbox.Busy, 0, "14"},
		{"broken", "grpc", grpc("13", ""), outbox.Failed, 0, "13"},
		{"status of no number", "grpc", grpc("-1", ""), outbox.Failed, 0, "protocol error"},
		{"over HTTP", "grpc", plain(503, "text/plain", ""), outbox.Busy, 0, "503"},
	} {
		t.Run(c.protocol+" "+c.name, func(t *testing.T) {
			s, _ := sending(t, over(c.protocol, listening(t, c.server).URL), Options{})
			v := s.send(t.Context(), []byte("message"))
			problem := fmt.Sprint(v.Problem)
			if v.Problem == nil {
				problem = ""
			}
			if v.Outcome != c.want || !strings.Contains(problem, c.says) || strings.ContainsAny(problem, "\x1b\n") || len(problem) > 400 {
				t.Errorf("%+v (%s)", v, problem)
			}
			if v.Outcome == outbox.Taken && c.says == "" && v.Refused == 0 && problem != "" {
				t.Errorf("%s", problem)
			}
			if c.want == outbox.Taken || c.want == outbox.Refused {
				s.Put(batchOf(3, "message"))
				drain(t, s)
				if n := lossOf(t, s.Loss.Counters(), "push_refused"); n != uint64(c.refused) {
					t.Errorf("%d refused", n)
				}
			}
		})
	}
}

// A target that fails is asked again, each time later, and not before it wants to be;
// what was sent is the same to the byte, and what it takes is gone.
func TestRetries(t *testing.T) {
	var mu sync.Mutex
	var bodies []string
	server := listening(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		bodies = append(bodies, string(body))
		n := len(bodies)
		mu.Unlock()
		switch {
		case n == 3:
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(http.StatusTooManyRequests)
		case n == 4:
			w.Header().Set("Retry-After", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusServiceUnavailable)
		case n == 5:
			w.Header().Set("Retry-After", "4000000000")
			w.WriteHeader(http.StatusServiceUnavailable)
		case n <= 8:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			accept(w, r)
		}
	})
	said := ""
	s, waits := sending(t, server.URL, Options{Warn: func(text string) { said = text }})
	s.Put(batchOf(2, "first"))
	s.Put(batchOf(1, "second"))
	drain(t, s)
	if len(bodies) != 10 || bodies[8] != "first" || bodies[0] != "first" || bodies[9] != "second" {
		t.Fatalf("%q", bodies)
	}
	for i, most := range []time.Duration{1, 2, 120, 600, 3600, 32, 60, 60} {
		most *= time.Second
		if d := waits.all[i]; d > most || d < most/2-2*time.Second {
			t.Errorf("wait %d is %v, want about %v", i, d, most)
		}
	}
	if lossOf(t, s.Loss.Counters(), "push_retries") != 8 {
		t.Error("tries are not counted")
	}
	lossless(t, s.Loss.Counters(), "push_retries")
	if !strings.HasSuffix(said, "it works again") {
		t.Error(said)
	}
}

// A request that breaks the target does not stop those behind it for good.
func TestGiveUp(t *testing.T) {
	broken := listening(t, func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) == "poison" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		accept(w, r)
	})
	said := ""
	s, waits := sending(t, broken.URL, Options{Warn: func(text string) { said = text }})
	s.Put(batchOf(4, "poison"))
	s.Put(batchOf(1, "good"))
	drain(t, s)
	if lossOf(t, s.Loss.Counters(), "push_gave_up") != 4 || !strings.HasSuffix(said, "it works again") || len(waits.all) != maxFailures-1 {
		t.Errorf("%q, %d waits", said, len(waits.all))
	}
}

// What a target does that is dead, slow, or endless takes no longer than a request may,
// and no more memory.
func TestHostileTargets(t *testing.T) {
	hang := func(answer string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = io.WriteString(c, answer)
			_, _ = io.Copy(io.Discard, c)
		}
	}
	for name, serve := range map[string]func(net.Conn){
		"silent":       hang(""),
		"no body":      hang("HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 10\r\n\r\n"),
		"no HTTP":      hang("220 mail.example ESMTP\r\n\x1b[2J" + strings.Repeat("x", 1<<20)),
		"endless head": func(c net.Conn) { flood(c, "HTTP/1.1 200 OK\r\n", "X-A: "+strings.Repeat("a", 1000)+"\r\n") },
		"endless 100":  func(c net.Conn) { flood(c, "", "HTTP/1.1 100 Continue\r\n\r\n") },
		"endless body": func(c net.Conn) {
			flood(c, "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\r\n", "\x0a\x00")
		},
		"endless error": func(c net.Conn) { flood(c, "HTTP/1.1 400 Bad Request\r\n\r\n", "no ") },
		"drop by drop": func(c net.Conn) {
			for _, b := range []byte("HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\r\n" + strings.Repeat("\x0a\x00", 1<<20)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		},
		"closed": func(c net.Conn) { c.Close() },
	} {
		for _, protocol := range []string{"http", "grpc"} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						go func() {
							defer c.Close()
							serve(c)
						}()
					}
				}()
				s, _ := sending(t, protocol+"://"+l.Addr().String(), Options{})
				s.client.Timeout = 300 * time.Millisecond
				v := s.send(t.Context(), []byte("message"))
				if v.Outcome == outbox.Taken || v.Outcome == outbox.Refused || v.Problem == nil {
					t.Errorf("%+v", v)
				}
			})
		}
	}
}

// The same over HTTP/2.
func TestHostileHTTP2(t *testing.T) {
	begin := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
	}
	for name, serve := range map[string]http.HandlerFunc{
		"silent": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"no end": func(w http.ResponseWriter, r *http.Request) {
			begin(w)
			_, _ = w.Write(make([]byte, 5))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"endless body": func(w http.ResponseWriter, _ *http.Request) {
			begin(w)
			for err := error(nil); err == nil; {
				_, err = w.Write(make([]byte, 1<<16))
			}
		},
		"a long trailer": func(w http.ResponseWriter, _ *http.Request) {
			begin(w)
			_, _ = w.Write(make([]byte, 5))
			w.Header().Set("Grpc-Status", strings.Repeat("0", 1<<20))
		},
		"drop by drop": func(w http.ResponseWriter, r *http.Request) {
			begin(w)
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte{0})
				_ = http.NewResponseController(w).Flush()
				time.Sleep(20 * time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := sending(t, over("grpc", listening(t, serve).URL), Options{})
			s.client.Timeout = 300 * time.Millisecond
			if v := s.send(t.Context(), []byte("message")); v.Outcome == outbox.Taken || v.Outcome == outbox.Refused || v.Problem == nil {
				t.Errorf("%+v", v)
			}
		})
	}
}

func flood(c net.Conn, head, again string) {
	_, err := io.WriteString(c, head)
	for more := strings.Repeat(again, 100); err == nil; {
		_, err = io.WriteString(c, more)
	}
}

// No redirect is followed: neither profiles nor credentials go to who was not named.
func TestRedirect(t *testing.T) {
	var elsewhere atomic.Int32
	other := listening(t, func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Add(1)
		accept(w, r)
	})
	server := listening(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	for _, protocol := range []string{"http", "grpc"} {
		s, _ := sending(t, over(protocol, server.URL), Options{})
		if v := s.send(t.Context(), []byte("message")); v.Outcome != outbox.Refused {
			t.Errorf("%s: %+v", protocol, v)
		}
	}
	if elsewhere.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

// A target that does not answer does not delay another one. What it does not take is
// counted when the agent ends.
func TestTargetsApart(t *testing.T) {
	hung := make(chan struct{})
	slow := listening(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	})
	defer close(hung)
	var got atomic.Int32
	good := listening(t, func(w http.ResponseWriter, r *http.Request) {
		got.Add(1)
		accept(w, r)
	})
	w := newWorld()
	a := w.start(7, "train")
	w.alloc(a, 1000)
	w.pass(time.Minute)
	o := Options{Source: w, Interval: time.Second, Targets: []string{slow.URL, good.URL}, Warn: func(string) {}}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	p.grace = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	eventually(t, "the good target has two", func() bool { return got.Load() >= 2 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	lossless(t, p.Loss(), "push_retries", "push_unsent")
	if n := lossOf(t, p.Loss(), "push_unsent"); n != uint64(got.Load()) {
		t.Errorf("%d unsent, the good target got %d", n, got.Load())
	}
}
