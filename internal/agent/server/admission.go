package server

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const (
	// maxConnections bounds the connections at a time. Of those that are not trusted (see
	// peer) there are at most maxStrangers, of those from this machine maxLocal, and of
	// one user maxOfUser: so each kind leaves room for those before it.
	maxConnections = 256
	maxStrangers   = 224
	maxLocal       = 160
	maxOfUser      = 64

	// A user of this machine who is not trusted may make so many connections and refused
	// requests at once, and so many a second.
	allowanceAtOnce = 400
	allowanceRate   = 200
	// maxUsers bounds the users whose allowance is remembered.
	maxUsers = 1024
)

// A peer is who made a connection.
type peer struct {
	local bool   // over the loopback device
	known bool   // the kernel told the user
	uid   uint32 // if known
}

// trusted tells whether root, or the user that this process runs as, made the connection:
// they could read this process's memory.
func (p peer) trusted() bool {
	return p.known && (p.uid == 0 || p.uid == uint32(os.Geteuid()))
}

// An admission accepts connections. It finds out who made each, once, and closes at once
// those of a user of this machine who takes more than a share: to close one costs little,
// and to answer a request on it costs much more.
type admission struct {
	net.Listener
	sockets *proc.Sockets // nil if the kernel does not tell who made a connection
	free    chan struct{} // as long as maxConnections
	lost    *loss.Set

	mu         sync.Mutex
	open       map[peer]int // connections of strangers
	strangers  int
	local      int
	allowances *lru.Cache[peer, allowance]
}

// An allowance is what a user may still do.
type allowance struct {
	left float64
	at   time.Time
}

func newAdmission(l net.Listener, sockets *proc.Sockets, lost *loss.Set) *admission {
	return &admission{Listener: l, sockets: sockets, lost: lost, free: make(chan struct{}, maxConnections), open: map[peer]int{}, allowances: lru.New[peer, allowance](maxUsers, nil)}
}

// Accept returns the next connection that has a share.
func (a *admission) Accept() (net.Conn, error) {
	a.free <- struct{}{}
	for {
		c, err := a.Listener.Accept()
		if err != nil {
			<-a.free
			return nil, err
		}
		p := a.peerOf(c)
		if a.admit(p, time.Now()) {
			return &connection{Conn: c, peer: p, admission: a}, nil
		}
		a.lost.Add(lossRefused, 1)
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // a reset is the cheapest end
		}
		_ = c.Close()
	}
}

// Close ends the listening.
func (a *admission) Close() error {
	err := a.Listener.Close()
	if a.sockets != nil {
		_ = a.sockets.Close()
	}
	return err
}

// peerOf returns who made a connection.
func (a *admission) peerOf(c net.Conn) peer {
	local, ok := c.LocalAddr().(*net.TCPAddr)
	remote, too := c.RemoteAddr().(*net.TCPAddr)
	if !ok || !too || !local.IP.IsLoopback() || !remote.IP.IsLoopback() {
		return peer{}
	}
	p := peer{local: true}
	if a.sockets != nil {
		uid, err := a.sockets.User(remote.AddrPort(), local.AddrPort())
		if p.known = err == nil; p.known {
			p.uid = uid
		}
	}
	return p
}

// admit gives a new connection a share, or tells that there is none for it.
func (a *admission) admit(p peer, now time.Time) bool {
	if p.trusted() {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.strangers >= maxStrangers || p.local && (a.local >= maxLocal || a.open[p] >= maxOfUser) || !a.spend(p, now) {
		return false
	}
	a.strangers++
	if p.local {
		a.open[p]++
		a.local++
	}
	return true
}

// leave gives back the share of a connection that ended.
func (a *admission) leave(p peer) {
	<-a.free
	if p.trusted() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.strangers--
	if !p.local {
		return
	}
	a.local--
	if a.open[p]--; a.open[p] == 0 {
		delete(a.open, p)
	}
}

// spend takes one from p's allowance, if there is one left. The caller holds mu.
func (a *admission) spend(p peer, now time.Time) bool {
	if p.trusted() || !p.local {
		return true
	}
	of, known := a.allowances.Get(p)
	if !known {
		of = allowance{allowanceAtOnce, now}
	}
	of.left = min(of.left+max(now.Sub(of.at).Seconds(), 0)*allowanceRate, allowanceAtOnce)
	of.at = now
	enough := of.left >= 1
	if enough {
		of.left--
	}
	a.allowances.Put(p, of)
	return enough
}

// asks takes a request from its peer's allowance, and tells whether there was one left.
func (a *admission) asks(r *http.Request, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spend(peerOf(r), now)
}

// reads gives back what asks took for a request that may read.
func (a *admission) reads(r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := peerOf(r)
	if of, known := a.allowances.Get(p); known {
		of.left = min(of.left+1, allowanceAtOnce)
		a.allowances.Put(p, of)
	}
}

// A connection is one that was admitted.
type connection struct {
	net.Conn
	peer      peer
	admission *admission
	once      sync.Once
}

func (c *connection) Close() error {
	defer c.once.Do(func() { c.admission.leave(c.peer) })
	return c.Conn.Close()
}

type peerKey struct{}

// withPeer remembers who made a connection.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	if c, ok := c.(*connection); ok {
		return context.WithValue(ctx, peerKey{}, c.peer)
	}
	return ctx
}

// peerOf returns who made the connection that a request came by.
func peerOf(r *http.Request) peer {
	p, _ := r.Context().Value(peerKey{}).(peer)
	return p
}

// user returns whose connection a request came by, if it is one of this machine.
func user(r *http.Request) (uid uint32, known bool) {
	p := peerOf(r)
	return p.uid, p.known
}
