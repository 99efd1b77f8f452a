package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const token = "0123456789abcdef"

// guardedPaths are those that tell of a trace.
var guardedPaths = []string{"/debug/pprof/", "/debug/pprof/gpumem", "/debug/pprof/heap", "/debug/pprof/profile", "/debug/pprof/trace", "/metrics", "/api/v1/top", "/api/v1/look", "/api/v1/events", "/api/v1/oom", "/api/v1/oom/1"}

var metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "gpumemtrace_up 1") })

// Nothing is told without the token, and nothing to who has another one.
func TestToken(t *testing.T) {
	s := serve(t, Options{Source: begun(), TokenFile: file(t, "token", token+"\n"), Metrics: metrics, Profiling: true})
	for _, path := range guardedPaths {
		for _, edit := range []func(*http.Request){
			with("X-None", ""), with("Authorization", "Bearer "), with("Authorization", token), with("Authorization", "Bearer "+token+"x"),
			with("Authorization", "Bearer "+token[1:]), with("Authorization", "Basic "+token), with("Cookie", "gpumemtrace="+token),
			func(r *http.Request) { r.SetBasicAuth(token, "") },
		} {
			s.forgives()
			answer, body := s.ask(http.MethodGet, path, edit)
			if answer.StatusCode != http.StatusUnauthorized || answer.Header.Get("WWW-Authenticate") == "" || strings.Contains(body, "4711") {
				t.Errorf("%s: %s: %s", path, answer.Status, body)
			}
		}
	}
	s.forgives()
	for _, path := range []string{"/debug/pprof/gpumem", "/metrics", "/api/v1/top", "/debug/pprof/heap", "/debug/pprof/trace?seconds=0.1"} {
		s.get(http.StatusOK, path, with("Authorization", "bearer "+token))
		s.get(http.StatusOK, path, func(r *http.Request) { r.SetBasicAuth("anybody", token) })
		s.get(http.StatusForbidden, path, with("Authorization", "Bearer "+token), with("Sec-Fetch-Site", "cross-site"))
		s.get(http.StatusForbidden, path, with("Authorization", "Bearer "+token), with("Origin", "https://elsewhere.example"))
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if body := s.get(http.StatusOK, path); len(body) > 10 {
			t.Errorf("%s tells %q", path, body)
		}
	}
	s.get(http.StatusNotFound, "/nothing")
	if answer, _ := s.ask(http.MethodPost, "/api/v1/top"); answer.StatusCode != http.StatusMethodNotAllowed {
		t.Error(answer.Status)
	}
}

// forgives makes the server forget who gave wrong tokens.
func (s *served) forgives() {
	s.guard.tries.mu.Lock()
	defer s.guard.tries.mu.Unlock()
	s.guard.tries.bad.Purge()
}

// asks has another user of this machine ask.
func (s *served) asks(uid uint32, header string) string {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.Addr().String())
	c := exec.Command("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/$0; printf "GET /api/v1/top HTTP/1.0\r\n$1\r\n\r\n" >&3; head -1 <&3`, port, header)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 65534}}
	out, err := c.CombinedOutput()
	if err != nil {
		s.t.Fatal(err, string(out))
	}
	return string(out)
}

// Without a token root may read, and no other user of the machine, nor a proxy.
func TestPeers(t *testing.T) {
	s := serve(t, Options{Source: begun()})
	wants(t, "root", s.asks(0, "Host: localhost"), "200 OK")
	wants(t, "another user", s.asks(65534, "Host: localhost"), "401 Unauthorized")
	wants(t, "another user with a token of their own", s.asks(65534, "Host: localhost\\r\\nAuthorization: Bearer "+token), "401 Unauthorized")
	for _, header := range []string{"X-Forwarded-For: 192.0.2.1", "x-forwarded-proto: https", "Forwarded: for=192.0.2.1", "Via: 1.1 x", "X-Real-IP: 192.0.2.1"} {
		wants(t, "a proxy of root's", s.asks(0, "Host: localhost\\r\\n"+header), "401 Unauthorized")
	}
	for host, may := range map[string]bool{"localhost": true, "LocalHost:9844": true, "127.0.0.1:9844": true, "[::1]:9844": true, "[::1]": true, "192.0.2.7": true,
		"rebound.example": false, "localhost.rebound.example": false, "127.0.0.1.rebound.example:9844": false, "": true} {
		want := "403 Forbidden"
		if may {
			want = "200 OK"
		}
		if host == "" {
			host, want = "a b", "400 Bad Request"
		}
		wants(t, host, s.asks(0, "Host: "+host), want)
	}
	open := serve(t, Options{Source: begun(), Insecure: true})
	wants(t, "another user, open", open.asks(65534, "Host: localhost"), "200 OK")
	wants(t, "by a name of an attacker's", open.asks(65534, "Host: rebound.example"), "403 Forbidden")
	closed := serve(t, Options{Source: begun(), TokenFile: file(t, "token", token)})
	wants(t, "root without the token", closed.asks(0, "Host: localhost"), "401 Unauthorized")
	wants(t, "a user with the token", closed.asks(65534, "Host: rebound.example\\r\\nAuthorization: Bearer "+token), "200 OK")
}

// What others can reach takes TLS and a token.
func TestRefusesToListen(t *testing.T) {
	cert, key := certificateFiles(t, t.TempDir(), "localhost")
	tokenFile := file(t, "token", token)
	for name, o := range map[string]Options{
		"neither": {Address: ":0"}, "no TLS": {Address: "0.0.0.0:0", TokenFile: tokenFile}, "no token": {Address: "[::]:0", Certificate: cert, Key: key},
		"no key": {Address: "localhost:0", Certificate: cert}, "no certificate": {Address: "localhost:0", Key: key},
		"key for certificate": {Address: "localhost:0", Certificate: key, Key: cert}, "no file": {Address: "localhost:0", TokenFile: tokenFile + "x"},
		"a folder": {Address: "localhost:0", TokenFile: filepath.Dir(tokenFile)}, "short": {Address: "localhost:0", TokenFile: file(t, "short", "secret\n")},
		"two lines": {Address: "localhost:0", TokenFile: file(t, "two", token+"\n"+token+"\n")}, "no address": {Address: "nowhere"},
	} {
		o.Source = begun()
		if s, err := New(o); err == nil {
			t.Errorf("%s: it listens on %v", name, s.Addr())
			s.listener.Close()
		}
	}
	for name, o := range map[string]Options{
		"both": {Address: ":0", TokenFile: tokenFile, Certificate: cert, Key: key}, "insecure": {Address: ":0", Insecure: true}, "loopback": {Address: "127.0.0.1:0"}, "loopback 6": {Address: "[::1]:0"},
	} {
		o.Source = begun()
		s, err := New(o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s.listener.Close()
	}
}

// certificateFiles writes a certificate for a name, and its key.
func certificateFiles(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// A new certificate and a new token are taken when their files change, and bad ones not.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificateFiles(t, dir, "first.example")
	tokenFile := file(t, "token", token)
	if err := os.Chmod(tokenFile, 0o604); err != nil {
		t.Fatal(err)
	}
	var warned []string
	s := serve(t, Options{Source: begun(), Certificate: cert, Key: key, TokenFile: tokenFile, Warn: func(text string) { warned = append(warned, text) }})
	name := func() string {
		c, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := name(); got != "first.example" {
		t.Error(got)
	}
	certificateFiles(t, dir, "second.example")
	if got := name(); got != "first.example" {
		t.Errorf("%s, before the files are looked at again", got)
	}
	s.certificates.Expire()
	if got := name(); got != "second.example" {
		t.Error(got)
	}
	if err := os.WriteFile(key, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.certificates.Expire()
	if got := name(); got != "second.example" || len(warned) != 2 || !strings.Contains(warned[0], "every user may read") {
		t.Error(got, warned)
	}

	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	s.url = strings.Replace(s.url, "http://", "https://", 1)
	s.get(http.StatusOK, "/api/v1/top", with("Authorization", "Bearer "+token))
	if err := os.WriteFile(tokenFile, []byte("another-token-of-16"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.tokens.Expire()
	s.get(http.StatusUnauthorized, "/api/v1/top", with("Authorization", "Bearer "+token))
	s.get(http.StatusOK, "/api/v1/top", with("Authorization", "Bearer another-token-of-16"))
	if _, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1")
	}
}

// A request without a token gets an answer that says how to send one; a browser asks its user. The parts of the page
// that show nothing of a trace are for all.
func TestAskedForToken(t *testing.T) {
	s := serve(t, Options{Source: begun(), TokenFile: file(t, "token", token)})
	answer, body := s.ask(http.MethodGet, "/", with("Accept", "text/html,*/*"))
	if all := strings.Join(answer.Header.Values("WWW-Authenticate"), ", "); answer.StatusCode != http.StatusUnauthorized || !strings.Contains(all, "Bearer ") || !strings.Contains(all, "Basic ") ||
		!strings.Contains(answer.Header.Get("Content-Security-Policy"), "default-src 'none'") || !strings.Contains(body, "password") {
		t.Errorf("%s, %v, %s", answer.Status, answer.Header, body)
	}
	for _, a := range []*asset{script(), style(), icon()} {
		if answer, body = s.ask(http.MethodGet, a.path); answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != a.kind || len(body) < 100 {
			t.Errorf("%s: %s, %v", a.path, answer.Status, answer.Header)
		}
	}
	// Without a token there is nothing to give.
	s = serve(t, Options{Source: begun()})
	_, port, _ := net.SplitHostPort(s.Addr().String())
	c := exec.Command("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/$0; printf "GET / HTTP/1.0\r\nHost: localhost\r\nAccept: text/html\r\n\r\n" >&3; cat <&3`, port)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	if err != nil || strings.Contains(string(out), "Basic ") || !strings.Contains(string(out), "only root") {
		t.Errorf("%v: %s", err, out)
	}
}
