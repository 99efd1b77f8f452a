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
	// freeTries are how many wrong tokens a source may give before it has to wait: firstWait
	// after the next, and twice as long after each more, up to lastWait.
	freeTries = 5
	firstWait = time.Second
	lastWait  = time.Minute
	// forgiven is after how long without a wrong one all of a source's are forgotten.
	forgiven = 10 * time.Minute
	// maxSources bounds those whose wrong tokens are remembered.
	maxSources = 1024
)

// Tries bounds how often a source may give a wrong token. What others give is nothing to
// it. Where more sources give wrong ones than are remembered, those of the one that was
// not heard of for longest are forgotten.
type tries struct {
	mu  sync.Mutex
	bad *lru.Cache[string, bad] // by source
}

// Bad is what a source gave.
type bad struct {
	times int
	last  time.Time
}

func newTries() *tries { return &tries{bad: lru.New[string, bad](maxSources, nil)} }

// judge tells whether a source gave what is right, which is looked at only where the
// source need not wait, and for how long it must.
func (t *tries) judge(source string, now time.Time, right func() bool) (ok bool, wait time.Duration) {
	t.mu.Lock() // also while it is looked at: tries at one time are tries
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
	t.bad.Put(source, bad{b.times + 1, now})
	return false, 0
}

// wait is for how long nothing may be given after the last.
func (b bad) wait() time.Duration {
	if b.times <= freeTries {
		return 0
	}
	return min(firstWait<<min(b.times-freeTries-1, 30), lastWait)
}

// sourceOf says where a request comes from, as far as its sender cannot choose: the user
// on this machine, an address, or the network of an IPv6 address.
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
