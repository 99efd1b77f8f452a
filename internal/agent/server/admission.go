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
	// maxConnections bounds the connections at a time. At most maxStrangers of them may be
	// from peers that are not trusted (see peer). At most maxLocal of these may be from this
	// machine, and at most maxOfUser from one of its users. So each kind leaves room for the
	// kinds before it.
	maxConnections = 256
	maxStrangers   = 224
	maxLocal       = 160
	maxOfUser      = 64

	// These bound the new connections and refused requests of a user of this machine that is
	// not trusted: at once, and a second.
	allowanceAtOnce = 400
	allowanceRate   = 200
	// maxUsers bounds the users whose allowance is remembered.
	maxUsers = 1024
)

// A peer is the other end of a connection.
type peer struct {
	local bool   // over the loopback device
	known bool   // the kernel reported the user
	uid   uint32 // if known
}

// trusted reports whether root, or the user that this process runs as, made the connection:
// they could read this process's memory.
func (p peer) trusted() bool {
	return p.known && (p.uid == 0 || p.uid == uint32(os.Geteuid()))
}

// An admission accepts connections. It looks up the peer of each connection once. If a user
// of this machine takes more than a share, it closes the connection at once: this costs much
// less than to answer a request.
type admission struct {
	net.Listener
	sockets *proc.Sockets // nil if the kernel does not report the user of a connection
	free    chan struct{} // has a slot for each of maxConnections
	lost    *loss.Set

	mu         sync.Mutex
	open       map[peer]int // connections of each local peer that is not trusted
	strangers  int
	local      int
	allowances *lru.Cache[peer, allowance]
}

// An allowance is the number of connections and refused requests that a user still has.
type allowance struct {
	left float64
	at   time.Time
}

func newAdmission(l net.Listener, sockets *proc.Sockets, lost *loss.Set) *admission {
	return &admission{Listener: l, sockets: sockets, lost: lost, free: make(chan struct{}, maxConnections), open: map[peer]int{}, allowances: lru.New[peer, allowance](maxUsers, nil)}
}

// Accept returns the next connection that is admitted.
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
			_ = t.SetLinger(0) // a reset costs least
		}
		_ = c.Close()
	}
}

// Close stops listening.
func (a *admission) Close() error {
	err := a.Listener.Close()
	if a.sockets != nil {
		_ = a.sockets.Close()
	}
	return err
}

// peerOf returns the peer of a connection.
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

// admit counts a new connection, and reports whether there is room for it.
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

// leave makes room again after a connection ended.
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

// spend takes one unit of p's allowance, and reports whether one was left. The caller holds
// mu.
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
	a.allowances.Add(p, of)
	return enough
}

// asks takes one unit of the allowance of a request's peer, and reports whether one was
// left.
func (a *admission) asks(r *http.Request, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spend(peerOf(r), now)
}

// reads gives back the unit that asks took, for a request that may read.
func (a *admission) reads(r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := peerOf(r)
	if of, known := a.allowances.Get(p); known {
		of.left = min(of.left+1, allowanceAtOnce)
		a.allowances.Add(p, of)
	}
}

// A connection is an admitted connection.
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

// withPeer puts the peer of a connection into its context.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	if c, ok := c.(*connection); ok {
		return context.WithValue(ctx, peerKey{}, c.peer)
	}
	return ctx
}

// peerOf returns the peer of a request's connection.
func peerOf(r *http.Request) peer {
	p, _ := r.Context().Value(peerKey{}).(peer)
	return p
}

// user returns the user that made a request's connection, if it came from this machine.
func user(r *http.Request) (uid uint32, known bool) {
	p := peerOf(r)
	return p.uid, p.known
}
