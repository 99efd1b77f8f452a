package push

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/outbox"
)

// The headers of the file are sent to whom they are for, are read again when they change,
// and never told.
func TestHeaders(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]http.Header{}
	server := listening(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.URL.Path] = r.Header.Clone()
		mu.Unlock()
		w.WriteHeader(http.StatusForbidden)
	})
	path := filepath.Join(t.TempDir(), "headers")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# a comment\nX-Scope-OrgID: gpu\n\nAuthorization: Bearer hunter2\n")
	var warned []string
	o := Options{HeaderFile: path, Warn: func(s string) { warned = append(warned, s) }}
	for _, protocol := range []string{"http", "grpc"} {
		s, _ := sending(t, over(protocol, server.URL), o)
		s.Put(batchOf(1, "x"))
		drain(t, s)
		h := seen[s.system.path]
		if h.Get("X-Scope-OrgID") != "gpu" || h.Get("Authorization") != "Bearer hunter2" {
			t.Errorf("%s: %v", protocol, h)
		}
	}
	if strings.Contains(strings.Join(warned, " "), "hunter2") || len(warned) != 2 {
		t.Errorf("%q", warned)
	}
	warned = nil
	h, err := openHeaders(path, o.Warn)
	if err != nil {
		t.Fatal(err)
	}
	write("X-Scope-OrgID: other tenant\n")
	h.file.Expire()
	if got := h.get().Get("X-Scope-OrgID"); got != "other tenant" {
		t.Errorf("%q after the file changed", got)
	}
	write("secret without a colon")
	h.file.Expire()
	if got := h.get().Get("X-Scope-OrgID"); got != "other tenant" {
		t.Errorf("%q after the file was damaged", got)
	}
	h.file.Expire()
	h.get()
	if len(warned) != 1 || strings.Contains(warned[0], "secret") {
		t.Errorf("warned of %q", warned)
	}
	for _, bad := range []string{"secret", "A b: secret", "Host: secret", "Grpc-Timeout: secret", "A: secret\x01", "[otlp]", "content-length: 1", strings.Repeat("x", maxHeaderFile+1)} {
		if _, err := readHeaders([]byte(bad)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

// Where credentials could be read on the way, there is no target.
func TestPlainCredentials(t *testing.T) {
	path := filepath.Join(t.TempDir(), "headers")
	if err := os.WriteFile(path, []byte("Authorization: Bearer x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]bool{"http://store.example": false, "https://store.example": true, "http://127.0.0.1:1": true, "http://[::1]:1": true, "http://localhost": true} {
		_, err := New(Options{HeaderFile: path, Targets: []string{url}})
		if (err == nil) != want {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := New(Options{HeaderFile: path, Insecure: true, Targets: []string{"http://store.example"}}); err != nil {
		t.Error(err)
	}
}

func TestTargets(t *testing.T) {
	const path = "/v1development/profiles"
	for url, want := range map[string]string{
		"http://h:4318":          "http://h:4318" + path,
		"http://h:4318/":         "http://h:4318" + path,
		"https://h/otlp/":        "https://h/otlp" + path,
		"https://h" + path:       "https://h" + path,
		"h:4318":                 "",
		"ftp://h":                "",
		"http://":                "",
		"grpc://":                "",
		"http://u:secret@h":      "",
		"http://h/?token=secret": "",
		"http://h:secret":        "",
	} {
		s, u, err := systemOf(url)
		if (err == nil) != (want != "") || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
		if err == nil && u.JoinPath(s.path).String() != want {
			t.Errorf("%s: %s", url, u.JoinPath(s.path))
		}
	}
	if s, u, err := systemOf("grpcs://h:4317"); err != nil || u.String() != "https://h:4317" || !s.grpc {
		t.Errorf("%v, %v", u, err)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no target is needed")
	}
}

// A server's certificate is looked at.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(accept))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	for _, protocol := range []string{"https", "grpcs"} {
		s, _ := sending(t, strings.Replace(server.URL, "https", protocol, 1), Options{})
		v := s.send(t.Context(), []byte("x"))
		var unknown *tls.CertificateVerificationError
		if v.Outcome != outbox.Busy || !errors.As(v.Problem, &unknown) {
			t.Errorf("%s: %+v", protocol, v)
		}
	}
}
