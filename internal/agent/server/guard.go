package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// A guard says who may read. What it guards changes nothing, so that it is reading alone.
type guard struct {
	token  func() string // "" for none
	open   bool          // who can connect may read, where there is no token
	secure bool          // TLS
	host   string        // this machine's name
	tries  *tries
}

// A verdict is what a guard says of a request.
type verdict int

const (
	mayRead verdict = iota
	needsToken
	crossSite // a page of another origin asks
	wrongHost // by a name that anybody may give this machine
	mustWait  // too many wrong tokens came from there
)

// gives tells whether a request that gives a token gives the right one, and for how long
// who sends it has to wait before another is looked at.
func (g *guard) gives(r *http.Request, given string) (verdict, time.Duration) {
	token := g.token()
	ok, wait := g.tries.judge(sourceOf(r), time.Now(), func() bool { return same(given, token) })
	switch {
	case ok:
		return mayRead, 0
	case wait > 0:
		return mustWait, wait
	}
	return needsToken, 0
}

// judge says whether a request may read, and how long one has to wait that must.
func (g *guard) judge(r *http.Request) (verdict, time.Duration) {
	if v := g.withoutToken(r); v != needsToken {
		return v, 0
	}
	if given, did := bearer(r); did && g.token() != "" {
		return g.gives(r, given)
	}
	return needsToken, 0
}

// withoutToken judges a request but for the token that it gives.
func (g *guard) withoutToken(r *http.Request) verdict {
	if !sameOrigin(r) {
		return crossSite
	}
	if token := g.token(); token != "" {
		if _, did := bearer(r); did {
			return needsToken
		}
		if c, err := r.Cookie(g.cookieName()); err == nil && proves(c.Value, token, g.from(r), time.Now()) {
			return mayRead
		}
		return needsToken
	}
	if !g.names(r.Host) {
		return wrongHost
	}
	if g.open || trusted(r) {
		return mayRead
	}
	return needsToken
}

// bearer returns the token of a request's header: as a bearer's, or as the password of
// whoever, which is what an address with a password in it sends.
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

// cookieName is that of a login. A browser takes one that begins so over TLS alone, and
// from this host alone.
func (g *guard) cookieName() string {
	if g.secure {
		return "__Host-gpumemtrace"
	}
	return "gpumemtrace"
}

// from says what a cookie is bound to: browsers send it to every port of the machine, and
// other users listen there. It is the user of the connection where there is no TLS.
func (g *guard) from(r *http.Request) string {
	if g.secure {
		return ""
	}
	uid, known := user(r)
	if !known {
		return "elsewhere"
	}
	return "user " + utoa(uid)
}

// trusted tells whether a request came by a connection of a trusted peer. What came
// through a proxy is somebody else's.
func trusted(r *http.Request) bool {
	for name := range r.Header {
		if name == "Forwarded" || name == "Via" || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-") {
			return false
		}
	}
	return peerOf(r).trusted()
}

// names tells whether a request's Host is one that nobody else can have lead here: an
// address, localhost or the machine's own name. A name of an attacker's that leads here
// would make their page one of this origin.
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

// sameOrigin tells whether no page of another origin made the request, but for a link to
// follow.
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
