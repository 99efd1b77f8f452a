package alert

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// a target answers posts with what status returns, and keeps them.
type target struct {
	*httptest.Server
	mu     sync.Mutex
	posts  []message
	bodies []string
}

func newTarget(t *testing.T, status func(n int, w http.ResponseWriter)) *target {
	x := &target{}
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m message
		if err := json.Unmarshal(body, &m); err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%v: %s", err, body)
		}
		x.mu.Lock()
		x.posts = append(x.posts, m)
		x.bodies = append(x.bodies, string(body))
		n := len(x.posts)
		x.mu.Unlock()
		status(n, w)
	}))
	t.Cleanup(x.Close)
	return x
}

func (x *target) got() []message {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.posts)
}

// a hook runs a Webhook. end ends it, and returns what it lost and said.
func hook(t *testing.T, url string) (w *Webhook, end func() (map[string]uint64, []string)) {
	t.Helper()
	var said []string
	w, err := NewWebhook(WebhookOptions{URL: url, Node: "node1", Warn: func(s string) { said = append(said, s) }})
	if err != nil {
		t.Fatal(err)
	}
	w.outbox.Wait = func(context.Context, time.Duration) {}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx) // which never fails
	}()
	return w, func() (map[string]uint64, []string) {
		cancel()
		<-done
		return lost(w.Loss()), said
	}
}

func lost(all []loss.Counter) map[string]uint64 {
	out := map[string]uint64{}
	for _, c := range all {
		if c.Value != 0 {
			out[c.Name] = c.Value
		}
	}
	return out
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not %s in time", what)
		}
	}
}

func TestWebhook(t *testing.T) {
	x := newTarget(t, func(n int, w http.ResponseWriter) {
		if n <= 2 {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	w, end := hook(t, x.URL+"/secret/path?token=hidden")
	a := Alert{Rule: "oom", Subject: Subject{PID: 7, Process: "<b>\"\\\x1b", GPU: "0"}, Time: time.Unix(5, 0).UTC(), Since: time.Unix(4, 0).UTC(), Value: 3, Text: "it is so", Stack: []string{"f a.py:1"}}
	w.Send(a)
	eventually(t, "delivered", func() bool { return len(x.got()) == 3 })
	count, said := end()
	for _, m := range x.got() {
		if d := cmp.Diff(message{1, "node1", a}, m); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	if len(count) != 1 || count["alert_posts_failed"] != 2 {
		t.Errorf("lost %v", count)
	}
	if len(said) != 2 || !strings.Contains(said[0], "it answers 502") || !strings.Contains(said[1], "again") {
		t.Errorf("said %q", said)
	}
	want := `{"version":1,"node":"node1","rule":"oom","resolved":false,"subject":{"gpu":"0","pid":7,"process":"\u003cb\u003e\"\\\u001b"},"time":"1970-01-01T00:00:05Z","since":"1970-01-01T00:00:04Z","value":3,"limit":0,"text":"it is so","stack":["f a.py:1"]}`
	if x.bodies[0] != want {
		t.Errorf("%s", x.bodies[0])
	}
}

// A target that refuses is not asked again, one that sends elsewhere is not followed, and
// what never answers keeps nobody waiting.
func TestWebhookRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(int, http.ResponseWriter)
		posts  int
		says   string
	}{
		"not found": {func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }, 1, "404"},
		"redirect": {func(_ int, w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusFound)
		}, 1, "does not follow redirects"},
		"always failing": {func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }, maxTries, "500"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTarget(t, tt.answer)
			w, end := hook(t, x.URL)
			w.Send(Alert{})
			eventually(t, "given up", func() bool { return lost(w.Loss())["alerts_undelivered"] == 1 })
			if _, said := end(); len(x.got()) != tt.posts || len(said) != 1 || !strings.Contains(said[0], tt.says) {
				t.Errorf("%d posts, said %q", len(x.got()), said)
			}
		})
	}
}

// Nothing of an address but scheme and host is told, whatever fails.
func TestWebhookSecrets(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	w, end := hook(t, "http://user:hidden@"+closed.Addr().String()+"/hidden?hidden#hidden")
	w.Send(Alert{})
	eventually(t, "given up", func() bool { return lost(w.Loss())["alerts_undelivered"] == 1 })
	_, said := end()
	if len(said) != 1 || strings.Contains(fmt.Sprint(said, w), "hidden") || !strings.Contains(said[0], closed.Addr().String()) {
		t.Errorf("said %q of %v", said, w)
	}
	for _, bad := range []string{"", "hidden", "ftp://hidden", "http://", "http://h:hidden/", "http://h/%hidden", "https:///hidden", "\x00hidden"} {
		if _, err := NewWebhook(WebhookOptions{URL: bad}); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Send waits for nothing: what a target does not take in time is dropped, the oldest first, and
// counted. At the end each that waits is sent.
func TestWebhookQueue(t *testing.T) {
	let := make(chan struct{})
	x := newTarget(t, func(int, http.ResponseWriter) { <-let })
	w, end := hook(t, x.URL)
	w.Send(Alert{Value: -1})
	eventually(t, "posting", func() bool { return len(x.got()) == 1 })
	for i := range int64(maxWaiting + 50) {
		w.Send(Alert{Value: i})
	}
	close(let)
	count, _ := end()
	got := x.got()
	if count["alerts_dropped"] != 50 || len(count) != 1 {
		t.Errorf("lost %v", count)
	}
	if n := int64(len(got)); n != maxWaiting+1 || got[1].Value != 50 || got[n-1].Value != maxWaiting+49 {
		t.Errorf("%d posts, the last %+v", n, got[n-1])
	}
}
