package server

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// logsIn posts a token, and returns the answer and the cookie that came.
func (s *served) logsIn(given string, edit ...func(*http.Request)) (*http.Response, *http.Cookie) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/login", strings.NewReader(url.Values{"token": {given}}.Encode()))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, e := range edit {
		e(r)
	}
	answer, err := s.client.Transport.RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	answer.Body.Close()
	if all := answer.Cookies(); len(all) > 0 {
		return answer, all[0]
	}
	return answer, nil
}

// A login's cookie proves that the token was given, is not it, and is of no use to
// another user, with another token, or after its time.
func TestCookie(t *testing.T) {
	s := serve(t, Options{Source: begun(), TokenFile: file(t, "token", token)})
	if answer, c := s.logsIn("fedcba9876543210"); c != nil || answer.StatusCode != http.StatusUnauthorized {
		t.Error(answer.Status, c)
	}
	if answer, c := s.logsIn(token, with("Origin", "https://elsewhere.example")); c != nil || answer.StatusCode != http.StatusForbidden {
		t.Error(answer.Status, c)
	}
	if answer, c := s.logsIn(token, with("Sec-Fetch-Site", "cross-site"), with("Sec-Fetch-Mode", "navigate"), with("Sec-Fetch-Dest", "document")); c != nil || answer.StatusCode != http.StatusForbidden {
		t.Error(answer.Status, c)
	}
	answer, c := s.logsIn(token)
	if c == nil || answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != "/" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || strings.Contains(c.Value, token) {
		t.Fatal(answer.Status, answer.Header, c)
	}
	cookie := with("Cookie", c.Name+"="+c.Value)
	s.get(http.StatusOK, "/api/v1/top", cookie)
	s.get(http.StatusUnauthorized, "/api/v1/top", with("Cookie", c.Name+"="+c.Value+"0"))
	until, sum, _ := strings.Cut(c.Value, ".")
	s.get(http.StatusUnauthorized, "/api/v1/top", with("Cookie", c.Name+"="+until+"0."+sum))
	if got := s.asks(65534, "Host: localhost\\r\\nCookie: "+c.Name+"="+c.Value); !strings.Contains(got, "401") {
		t.Errorf("another user, by the cookie: %s", got)
	}
	if got := s.asks(0, "Host: localhost\\r\\nCookie: "+c.Name+"="+c.Value); !strings.Contains(got, "200") {
		t.Errorf("the same user: %s", got)
	}
	other := serve(t, Options{Source: begun(), TokenFile: file(t, "token", token+"x")})
	other.get(http.StatusUnauthorized, "/api/v1/top", cookie)

	now := time.Unix(1_700_000_000, 0)
	good := cookieOf(token, "x", now.Add(time.Hour))
	for at, want := range map[time.Duration]bool{0: true, time.Hour - time.Second: true, time.Hour: false, 2 * time.Hour: false, -cookieFor: false} {
		if proves(good, token, "x", now.Add(at)) != want {
			t.Errorf("after %v: %v", at, !want)
		}
	}
	if proves(good, token, "y", now) || proves(good, token+"x", "x", now) || proves("", token, "x", now) || proves(".", token, "x", now) {
		t.Error("a cookie proves too much")
	}
}

// Over TLS the cookie is the host's alone.
func TestSecureCookie(t *testing.T) {
	cert, key := certificateFiles(t, t.TempDir(), "localhost")
	s := serve(t, Options{Source: begun(), TokenFile: file(t, "token", token), Certificate: cert, Key: key})
	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	s.url = strings.Replace(s.url, "http:", "https:", 1)
	_, c := s.logsIn(token)
	if c == nil || !c.Secure || c.Name != "__Host-gpumemtrace" || c.Path != "/" || c.Domain != "" {
		t.Fatal(c)
	}
	s.get(http.StatusOK, "/", with("Cookie", c.Name+"="+c.Value))
	out, err := s.client.Transport.RoundTrip(mustRequest(t, s.url+"/logout", with("Cookie", c.Name+"="+c.Value)))
	if err != nil {
		t.Fatal(err)
	}
	out.Body.Close()
	if all := out.Cookies(); len(all) != 1 || all[0].Value != "" || all[0].Expires.After(time.Now()) {
		t.Error(all)
	}
}

func mustRequest(t *testing.T, address string, edit func(*http.Request)) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	edit(r)
	return r
}

// A browser gets a form, a program a sentence, and nobody more.
func TestAskedForToken(t *testing.T) {
	s := serve(t, Options{Source: begun(), TokenFile: file(t, "token", token)})
	answer, body := s.ask(http.MethodGet, "/", with("Accept", "text/html,*/*"))
	if answer.StatusCode != http.StatusUnauthorized || !strings.Contains(body, "<form") || !strings.Contains(answer.Header.Get("Content-Security-Policy"), "default-src 'none'") || strings.Contains(body, "4711") {
		t.Errorf("%s, %v, %s", answer.Status, answer.Header, body)
	}
	if answer, body = s.ask(http.MethodGet, "/"); answer.StatusCode != http.StatusUnauthorized || strings.Contains(body, "<") {
		t.Errorf("%s, %s", answer.Status, body)
	}
	for _, a := range []*asset{script, style, icon} {
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
	if err != nil || strings.Contains(string(out), "<form") || !strings.Contains(string(out), "only root") {
		t.Errorf("%v: %s", err, out)
	}
}
