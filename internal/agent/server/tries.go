package server

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
)

const (
	// A source may give freeTries wrong tokens without a wait. After the next one it must wait
	// for firstWait, and after each further one twice as long, up to lastWait.
	freeTries = 5
	firstWait = time.Second
	lastWait  = time.Minute
	// forgiven is the time without a wrong token after which a source has its free tries
	// again.
	forgiven = 10 * time.Minute
	// maxSources bounds the sources whose wrong tokens are counted.
	maxSources = 1024
)

// tries bounds how often a source may give a wrong token, whatever other sources give. If more
// than maxSources give wrong tokens, it forgets the source whose last try is the oldest.
type tries struct {
	mu  sync.Mutex
	bad *lru.Cache[string, bad] // by source
}

// bad counts the wrong tokens of a source.
type bad struct {
	times int
	last  time.Time
}

func newTries() *tries { return &tries{bad: lru.New[string, bad](maxSources, nil)} }

// judge reports whether a source gave the right token. If the source must wait, judge does
// not check the token and returns how long.
func (t *tries) judge(source string, now time.Time, right func() bool) (ok bool, wait time.Duration) {
	t.mu.Lock() // also during right: tries at the same time must count one by one
	defer t.mu.Unlock()
	b, known := t.bad.Get(source)
	if known && now.Sub(b.last) >= forgiven {
		b = bad{}
	}
	if wait := b.wait() - now.Sub(b.last); wait > 0 {
		return false, wait
	}
	if right() {
		t.bad.Remove(source)
		return true, 0
	}
	t.bad.Add(source, bad{b.times + 1, now})
	return false, 0
}

// wait returns how long a source must wait after its last wrong token.
func (b bad) wait() time.Duration {
	if b.times <= freeTries {
		return 0
	}
	return min(firstWait<<min(b.times-freeTries-1, 30), lastWait)
}

// sourceOf returns the source of a request: a user of this machine, an IPv4 address, or the
// network of an IPv6 address, within which a sender can choose any address.
func sourceOf(r *http.Request) string {
	if uid, known := user(r); known {
		return "user " + utoa(uid)
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	at, err := netip.ParseAddr(host)
	if err != nil {
		return "unknown"
	}
	if at = at.Unmap().WithZone(""); at.Is4() {
		return at.String()
	}
	const network = 64 // bits
	p, err := at.Prefix(network)
	if err != nil {
		return at.String()
	}
	return p.String()
}
