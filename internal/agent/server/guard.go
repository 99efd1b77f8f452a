package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/reload"
)

// A guard decides whether a request may read. No request changes anything.
type guard struct {
	web       *reload.Value[*webConfig] // nil if everybody that can connect may read
	passwords *passwords
	host      string // this machine's name
}

// A verdict is a guard's decision on a request.
type verdict int

const (
	mayRead verdict = iota
	needsPassword
	crossSite // a page of another origin sent it
	wrongHost // its Host is a name that others could point at this machine
)

// judge decides on a request. The error is errBusy if too many passwords wait to be checked.
func (g *guard) judge(r *http.Request) (verdict, error) {
	if !sameOrigin(r) {
		return crossSite, nil
	}
	if users := g.users(r); len(users) > 0 {
		name, password, _ := r.BasicAuth()
		if password == "" {
			return needsPassword, nil
		}
		if right, err := g.passwords.check(users, name, password); err != nil || !right {
			return needsPassword, err
		}
		return mayRead, nil
	}
	if byCertificate := r.TLS != nil && len(r.TLS.VerifiedChains) > 0; !byCertificate && !g.names(r.Host) {
		return wrongHost, nil
	}
	return mayRead, nil
}

// users returns the users that may read, with the hashes of their passwords. It returns none if
// the request needs no password, as over the socket: whoever can connect there may read.
func (g *guard) users(r *http.Request) map[string]string {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if g.web == nil || at == nil || at.Network() == "unix" {
		return nil
	}
	return g.web.Get().users
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
