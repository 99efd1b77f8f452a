package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// A guard decides whether a request may read. No request changes anything.
type guard struct {
	token  func() string // "" for none
	open   bool          // without a token, everybody that can connect may read
	secure bool          // TLS
	host   string        // this machine's name
	tries  *tries
}

// A verdict is a guard's decision on a request.
type verdict int

const (
	mayRead verdict = iota
	needsToken
	crossSite // a page of another origin sent it
	wrongHost // its Host is a name that others could point at this machine
	mustWait  // too many wrong tokens came from the same source
)

// judge decides on a request. With mustWait it returns how long the sender must wait before
// the server checks another token.
func (g *guard) judge(r *http.Request) (verdict, time.Duration) {
	if !sameOrigin(r) {
		return crossSite, 0
	}
	token := g.token()
	if token == "" {
		switch {
		case !g.names(r.Host):
			return wrongHost, 0
		case g.open || trusted(r):
			return mayRead, 0
		}
		return needsToken, 0
	}
	given, did := bearer(r)
	if !did {
		return needsToken, 0
	}
	ok, wait := g.tries.judge(sourceOf(r), time.Now(), func() bool { return same(given, token) })
	switch {
	case ok:
		return mayRead, 0
	case wait > 0:
		return mustWait, wait
	}
	return needsToken, 0
}

// bearer returns the token in a request's header: a bearer token, or the password of basic
// authentication with any user name, because a URL with a password sends that.
func bearer(r *http.Request) (token string, ok bool) {
	if _, password, ok := r.BasicAuth(); ok {
		return password, true
	}
	const scheme = "bearer "
	h := r.Header.Get("Authorization")
	if len(h) > len(scheme) && strings.EqualFold(h[:len(scheme)], scheme) {
		return h[len(scheme):], true
	}
	return "", h != ""
}

// trusted reports whether a trusted peer made the request. A request through a proxy may be
// anybody's.
func trusted(r *http.Request) bool {
	for name := range r.Header {
		if name == "Forwarded" || name == "Via" || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-") {
			return false
		}
	}
	return peerOf(r).trusted()
}

// names reports whether a request's Host is an address, localhost or the machine's own name.
// An attacker could point any other name at this machine: then the browser would treat the
// attacker's page as one of this origin.
func (g *guard) names(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return strings.EqualFold(name, "localhost") || g.host != "" && strings.EqualFold(name, g.host)
}

// sameOrigin reports whether a request came from this origin or from no page. A page of
// another origin may only link here.
func sameOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(u.Host, r.Host) {
			return false
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return true
	}
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}
