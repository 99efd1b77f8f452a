package server

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
)

func TestParams(t *testing.T) {
	s := serve(t, Options{Source: begun()})
	for _, query := range []string{
		"pid=0", "pid=-1", "pid=+1", "pid=01", "pid=1e3", "pid=2147483648", "pid=99999999999999999999", "pid=", "pid=1&pid=2", "pid=%31%00", "pid=%zz", "pid=1;gpu=0", "PID=1",
		"gpu=", "gpu=..%2f..%2fetc", "gpu=%00", "gpu=<script>", "gpu=" + strings.Repeat("0", 65), "gpu=0%0d%0aX: y", "seconds=0", "seconds=3601", "seconds=1.5", "debug=2", "x=1", "file=/etc/passwd", "%70id=0",
		strings.Repeat("pid=1&", 200),
	} {
		if query == "gpu=..%2f..%2fetc" {
			s.get(http.StatusNotFound, "/debug/pprof/gpumem?"+query) // a label that no GPU has
			continue
		}
		s.get(http.StatusBadRequest, "/debug/pprof/gpumem?"+query)
	}
	for _, path := range []string{"/debug/pprof/../../etc/passwd", "/debug/pprof/..%2f..%2fetc%2fpasswd", "//etc/passwd", "/api/v1/oom/..%2f1", "/."} {
		if answer, body := s.ask(http.MethodGet, path); answer.StatusCode == http.StatusOK && !strings.Contains(body, "<title>") || strings.Contains(body, "root:") {
			t.Errorf("%s: %s: %.100s", path, answer.Status, body)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/healthz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Large", strings.Repeat("x", 2*maxHeader))
	if answer, err := s.client.Do(r); err == nil { // else it was cut off
		answer.Body.Close()
		if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Error(answer.Status)
		}
	}
}

// Whatever is asked, what is taken is what was written, and nothing else is.
func FuzzParams(f *testing.F) {
	f.Add("pid=4711&gpu=0&seconds=5")
	f.Add("site=1-1-1-1-1-1-1-1&gpu=MIG-0/1:2")
	f.Add("pid=%31&gpu=%2e%2e%2f&debug=1&&")
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.URL = &url.URL{Path: "/", RawQuery: query}
		p, err := paramsOf(r, "pid", "gpu", "seconds", "site")
		if err != nil {
			return
		}
		for name, value := range p {
			if value == "" || r.URL.Query().Get(name) != value {
				t.Errorf("%s is %q", name, value)
			}
		}
		if x, err := p.filter(); err == nil {
			if x.pid < 0 || x.pid > 0 && strconv.Itoa(x.pid) != p["pid"] || x.gpu != p["gpu"] || strings.ContainsAny(x.gpu, "\x00\r\n <>\"'%\\") {
				t.Errorf("%+v", x)
			}
		}
		if n, err := p.number("seconds", 1, 3600, 7); err == nil && (n < 1 || n > 3600) {
			t.Error(n)
		}
		if k, err := live.ParseSite(p["site"]); err == nil && live.SiteText(k) != p["site"] {
			t.Errorf("%+v", k)
		}
	})
}
