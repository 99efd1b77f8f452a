package server

import (
	"bytes"
	"context"
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

	"golang.org/x/crypto/bcrypt"
)

const password = "correct-horse"

// writeWeb writes a web configuration with a user, ada, and more lines.
func writeWeb(t testing.TB, lines ...string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return file(t, "web.yml", strings.Join(append(lines, "basic_auth_users: {ada: "+string(hash)+"}"), "\n"))
}

// as sends a user's password.
func as(user, password string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth(user, password) }
}

// guardedPaths are those that tell of a trace.
var guardedPaths = []string{"/", "/oom/1", "/debug/pprof/", "/debug/pprof/gpumem", "/debug/pprof/heap", "/debug/pprof/profile", "/debug/pprof/trace", "/metrics", "/api/v1/top", "/api/v1/look", "/api/v1/history", "/api/v1/events", "/api/v1/oom", "/api/v1/oom/1"}

var metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "gpumemtrace_up 1") })

// Who wants to know anything about a trace needs the right password. Everybody may see the rest.
func TestPassword(t *testing.T) {
	s := serve(t, Options{Source: begun(), WebConfig: writeWeb(t), Metrics: metrics, Profiling: true})
	for _, path := range guardedPaths {
		for _, edit := range []func(*http.Request){
			with("X-None", ""), with("Authorization", "Bearer "+password), with("Authorization", "Basic "+password), as("ada", ""), as("ada", password+"x"), as("bob", password), as("", password), as(password, "ada"),
		} {
			answer, body := s.ask(http.MethodGet, path, edit)
			if answer.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(answer.Header.Get("WWW-Authenticate"), "Basic ") || strings.Contains(body, "4711") ||
				!strings.Contains(answer.Header.Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("%s: %s, %v: %s", path, answer.Status, answer.Header, body)
			}
		}
	}
	for _, path := range []string{"/debug/pprof/gpumem", "/metrics", "/api/v1/top", "/debug/pprof/heap", "/debug/pprof/trace?seconds=0.1"} {
		s.get(http.StatusOK, path, as("ada", password))
		s.get(http.StatusForbidden, path, as("ada", password), with("Sec-Fetch-Site", "cross-site"))
		s.get(http.StatusForbidden, path, as("ada", password), with("Origin", "https://elsewhere.example"))
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

// A password that was right once need not wait for the checks of others. If too many wait, the next
// one is told to come again.
func TestManyPasswords(t *testing.T) {
	s := serve(t, Options{Source: begun(), WebConfig: writeWeb(t)})
	s.get(http.StatusOK, "/api/v1/top", as("ada", password))
	for range maxChecks {
		s.guard.passwords.waiting <- struct{}{}
	}
	if answer, _ := s.ask(http.MethodGet, "/api/v1/top", as("ada", "wrong")); answer.StatusCode != http.StatusServiceUnavailable || s.lossOf("http_requests_refused") != 1 {
		t.Error(answer.Status)
	}
	s.get(http.StatusOK, "/api/v1/top", as("ada", password))
}

// A browser's page of another name cannot be made to read, over TCP without passwords or over
// the socket.
func TestHosts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "agent.sock")
	l, err := ListenSocket(path, "")
	if err != nil {
		t.Fatal(err)
	}
	both := serve(t, Options{Source: begun(), Socket: l, Insecure: true, Address: "localhost:0"})
	closed := serve(t, Options{Source: begun(), WebConfig: writeWeb(t)})
	for host, want := range map[string]int{
		"localhost": 200, "LocalHost:9844": 200, "127.0.0.1:9844": 200, "[::1]:9844": 200, "[::1]": 200, "192.0.2.7": 200,
		"rebound.example": 403, "localhost.rebound.example": 403, "127.0.0.1.rebound.example:9844": 403,
	} {
		to := func(r *http.Request) { r.Host = host }
		both.get(want, "/api/v1/top", to)
		closed.get(http.StatusOK, "/api/v1/top", to, as("ada", password))
		c := http.Client{Transport: &http.Transport{DialContext: dialsSocket(path), DisableKeepAlives: true}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/api/v1/top", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		to(r)
		answer, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s over the socket: %s", host, answer.Status)
		}
	}
}

func dialsSocket(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
}

// dialEnv makes the test program connect to a socket, and print how that went.
const dialEnv = "GPUMEMTRACE_TEST_DIAL"

// runTests runs all tests. With those of the page, it has a browser.
var runTests = (*testing.M).Run

func TestMain(m *testing.M) {
	path := os.Getenv(dialEnv)
	if path == "" {
		os.Exit(runTests(m))
	}
	if _, err := net.Dial("unix", path); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("connects")
}

// Root and the members of the group read at the socket without a password. Nobody else can
// connect. ListenSocket replaces a socket that a killed agent left, but not that of a running
// agent, and no other file.
func TestSocket(t *testing.T) {
	top, err := os.MkdirTemp("/tmp", "gpumemtrace") // other users can reach it, wherever TMPDIR is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	if err := os.Chmod(top, 0o711); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(top, "run", "agent.sock")
	connects := func(uid, gid uint32) string {
		t.Helper()
		c := exec.Command("/proc/self/exe")
		c.Env = []string{dialEnv + "=" + path}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	const daemon = 1 // a group of every system
	for group, want := range map[string]string{"": "permission denied", "daemon": "connects"} {
		l, err := ListenSocket(path, group)
		if err != nil {
			t.Fatal(err)
		}
		mode := map[string]os.FileMode{"": 0o600, "daemon": 0o660}[group]
		if i, err := os.Stat(path); err != nil {
			t.Error(err)
		} else if i.Mode().Perm() != mode {
			t.Errorf("%v, want %v", i.Mode(), mode)
		}
		wants(t, "root", connects(0, 0), "connects")
		wants(t, "a member of daemon, for group "+group, connects(65534, daemon), want)
		wants(t, "another user", connects(65534, 65534), "permission denied")
		if _, err := ListenSocket(path, ""); err == nil || !strings.Contains(err.Error(), "another process listens") {
			t.Error(err)
		}
		shared, err := Share(l)
		if err != nil {
			t.Fatal(err)
		}
		s, err := of(Options{Source: begun(), Socket: shared, WebConfig: writeWeb(t), Address: "localhost:0"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		c := http.Client{Transport: &http.Transport{DialContext: dialsSocket(path), DisableKeepAlives: true}}
		answer, err := c.Get("http://localhost/api/v1/top")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Error(answer.Status)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		wants(t, "root, after a server ended", connects(0, 0), "connects")
		l.SetUnlinkOnClose(false) // as if the agent was killed
		l.Close()
	}
	l, err := ListenSocket(path, "")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenSocket(path, ""); err == nil {
		t.Error("it listens at a file")
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, []byte("precious")) {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := ListenSocket(path+"2", "no such group"); err == nil {
		t.Error("a group that is not there")
	}
}

// What others can reach takes TLS and passwords, or their certificates.
func TestRefusesToListen(t *testing.T) {
	cert, key := certificateFiles(t, t.TempDir(), "localhost")
	secure := "tls_server_config: {cert_file: " + cert + ", key_file: " + key + "}"
	verified := "tls_server_config: {cert_file: " + cert + ", key_file: " + key + ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: " + cert + "}"
	web := func(lines string) string { return file(t, "web.yml", lines) }
	for name, o := range map[string]Options{
		"neither": {Address: "localhost:0"}, "no TLS": {Address: "0.0.0.0:0", WebConfig: writeWeb(t)}, "no users": {Address: "localhost:0", WebConfig: web(secure)},
		"nothing": {Address: "localhost:0", WebConfig: web("{}")}, "a bad hash": {Address: "localhost:0", WebConfig: web("basic_auth_users: {ada: secret}")},
		"no key":              {Address: "localhost:0", WebConfig: writeWeb(t, "tls_server_config: {cert_file: "+cert+"}")},
		"key for certificate": {Address: "localhost:0", WebConfig: writeWeb(t, "tls_server_config: {cert_file: "+key+", key_file: "+cert+"}")},
		"nobody to verify":    {Address: "localhost:0", WebConfig: web(strings.Replace(verified, ", client_ca_file: "+cert, "", 1))},
		"a key not known":     {Address: "localhost:0", WebConfig: writeWeb(t, "rate_limit: {burst: 1}")},
		"no file":             {Address: "localhost:0", WebConfig: cert + "x"}, "no address": {Address: "nowhere", Insecure: true},
	} {
		o.Source = begun()
		if s, err := of(o); err == nil {
			t.Errorf("%s: it listens on %v", name, s.Addresses())
			s.tcp.Close()
		}
	}
	for name, o := range map[string]Options{
		"both": {Address: ":0", WebConfig: writeWeb(t, secure)}, "certificates": {Address: ":0", WebConfig: web(verified)}, "insecure": {Address: ":0", Insecure: true}, "loopback": {Address: "127.0.0.1:0", WebConfig: writeWeb(t)},
	} {
		o.Source = begun()
		s, err := of(o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s.tcp.Close()
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

// The server takes a new certificate and new passwords when their files change. It refuses bad ones,
// and a file that would let everybody read.
func TestReload(t *testing.T) {
	web := writeWeb(t, "tls_server_config: {cert_file: cert.pem, key_file: key.pem}")
	dir := filepath.Dir(web)
	_, key := certificateFiles(t, dir, "first.example")
	var warned []string
	s := serve(t, Options{Source: begun(), WebConfig: web, Warn: func(text string) { warned = append(warned, text) }})
	name := func() string {
		c, err := tls.Dial("tcp", s.Addresses()[0], &tls.Config{InsecureSkipVerify: true})
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
	s.guard.web.Expire()
	if got := name(); got != "second.example" {
		t.Error(got)
	}
	before, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.guard.web.Expire()
	if got := name(); got != "second.example" || len(warned) != 1 {
		t.Error(got, warned)
	}
	if err := os.WriteFile(key, before, 0o600); err != nil {
		t.Fatal(err)
	}

	// So are files that the configuration names only later.
	other := filepath.Join(dir, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(web)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.NewReplacer("cert.pem", "other/cert.pem", "key.pem", "other/key.pem").Replace(string(text)))
	if err := os.WriteFile(web, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"third.example", "fourth.example"} {
		certificateFiles(t, other, want)
		s.guard.web.Expire()
		if got := name(); got != want {
			t.Error(got, warned)
		}
	}

	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	s.url = strings.Replace(s.url, "http://", "https://", 1)
	s.get(http.StatusOK, "/api/v1/top", as("ada", password))
	for edit, status := range map[[2]string]int{{"ada", "bob"}: 200, {"basic_auth_users", "#"}: 401, {"tls_server", "#"}: 401} {
		if err := os.WriteFile(web, []byte(strings.Replace(string(text), edit[0], edit[1], 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		s.guard.web.Expire()
		s.get(http.StatusUnauthorized, "/api/v1/top")
		if status == 200 {
			s.get(http.StatusOK, "/api/v1/top", as("bob", password))
			s.get(http.StatusUnauthorized, "/api/v1/top", as("ada", password))
		}
	}
	if _, err := tls.Dial("tcp", s.Addresses()[0], &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1")
	}
}
