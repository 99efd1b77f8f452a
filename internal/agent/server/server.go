// Package server shows a running trace over HTTP: profiles for pprof's readers, JSON for
// programs, a page for people, and what else an agent has to say.
//
// Nothing that it answers to changes anything, but for a login. No parameter is a path.
// What is costly is made once for all who ask at the same time.
package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A Source is the trace that is shown: *session.Session.
type Source interface {
	View(state.Want) *state.View
	// Totals wait for no names.
	Totals() *state.Totals
	Done() <-chan struct{}
}

// Options say what is served, where, and to whom.
type Options struct {
	Source  Source
	Address string // "localhost:9844"
	// Certificate and Key are files in PEM, which are read again when they change; both,
	// or "" for no TLS.
	Certificate, Key string
	// TokenFile has the token that every reader must have, as ReadToken reads it, again
	// when it changes. Without one, root and this process's own user read, over the
	// loopback device.
	TokenFile string
	// Insecure: who can connect may read where there is no token, and without TLS; also
	// from other machines.
	Insecure bool
	Metrics  http.Handler // nil for none
	// Begun, if set, is closed when the trace has begun. Before, Source is not asked, nor
	// Metrics, and what would need them is refused.
	Begun <-chan struct{}
	// Ready, if set, says why the trace does not see all, nil when it does; Healthy why this
	// program is to be started afresh. Anybody may hear both. They wait for nothing.
	Ready, Healthy func() error
	// NotSeen, if set, says which processes a trace that is ready does not see, a line
	// each. Anybody may hear it. It waits for nothing.
	NotSeen func() []string
	// Workload, if set, says in a few words what a process is part of, "" if it is not
	// known. It waits for nothing.
	Workload func(pid int) string
	// Labels, if set, are what the samples of a process in a profile have beside its own
	// labels, by name. It waits for nothing: those that are not known yet are absent.
	Labels    func(pid int, process string) map[string]string
	Profiling bool // Go's own profiles of this process too
	// Before, if set, is the server that ended before this one: what it knew of the past
	// is shown on.
	Before *Server
	// Warn receives sentences for the user, from any goroutine.
	Warn func(string)
	// Version is this program's.
	Version string
}

const (
	maxHeader     = 16 << 10 // bytes
	headerWithin  = 5 * time.Second
	requestWithin = 10 * time.Second // the whole of it
	answerWithin  = 30 * time.Second // of what does not wait itself
	idleFor       = time.Minute
	endWithin     = 2 * time.Second
	maxRequests   = 64 // at a time
	maxWindows    = 16 // waiting for their end
)

var causes loss.Causes

var (
	lossRefused   = causes.Add("http_requests_refused", "HTTP requests and connections refused because too many came at once, or from one user")
	lossTries     = causes.Add("http_tokens_refused", "HTTP requests with a token that was not looked at because too many wrong ones had come from the same address or user")
	lossIncidents = causes.Add("http_oom_reports_dropped", "out-of-memory reports that the page and the API no longer have, because newer ones came")
)

// errEnding says that the server ends.
var errEnding = errors.New("ending")

// errBegins says that there is nothing to show yet.
var errBegins = errors.New("the trace has not begun: /readyz says why")

// A Server shows a trace.
type Server struct {
	opts         Options
	listener     *admission
	http         *http.Server
	guard        guard
	looks        *looks
	incidents    incidents
	history      history
	tokens       *reloaded[string]           // nil without
	certificates *reloaded[*tls.Certificate] // likewise
	lost         *loss.Set

	coloursMu sync.Mutex
	colours   map[string]map[string]int // of the page's bars, in order, by what they tell apart

	requests chan struct{} // those at a time
	windows  chan struct{}
	ending   chan struct{} // closed to end what waits
}

// New listens. Nothing is served before Run. An error says what of the options is wrong,
// or not safe, or why the address cannot be had.
func New(o Options) (*Server, error) {
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	if o.Begun == nil {
		begun := make(chan struct{})
		close(begun)
		o.Begun = begun
	}
	s := &Server{opts: o, colours: map[string]map[string]int{}, lost: loss.New(causes), requests: make(chan struct{}, maxRequests), windows: make(chan struct{}, maxWindows), ending: make(chan struct{})}
	s.guard = guard{token: func() string { return "" }, open: o.Insecure, secure: o.Certificate != "", tries: newTries()}
	if name, err := os.Hostname(); err == nil {
		s.guard.host = name
	}
	if o.TokenFile != "" {
		var err error
		if s.tokens, err = load(o.Warn, func() (string, error) { return ReadToken(o.TokenFile) }, o.TokenFile); err != nil {
			return nil, err
		}
		s.guard.token = s.tokens.get
		if readable(o.TokenFile) {
			o.Warn("every user may read the token in " + o.TokenFile)
		}
	}
	s.http = &http.Server{
		ReadHeaderTimeout: headerWithin, ReadTimeout: requestWithin, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		ConnContext: withPeer, ErrorLog: log.New(complaints(o.Warn), "", 0),
	}
	if (o.Certificate == "") != (o.Key == "") {
		return nil, errors.New("TLS takes a certificate and its key: give both files")
	}
	if o.Certificate != "" {
		var err error
		if s.certificates, err = certificate(o.Warn, o.Certificate, o.Key); err != nil {
			return nil, fmt.Errorf("read the certificate: %w", err)
		}
		s.http.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certificates.get(), nil }}
	}
	s.looks = newLooks(live.NewTraceSource(o.Source))
	s.http.Handler = s.handler()
	if err := s.listen(); err != nil {
		return nil, err
	}
	if b := o.Before; b != nil {
		s.opts.Before = nil
		s.history.follow(&b.history)
		s.incidents.follow(&b.incidents)
		s.guard.tries = b.guard.tries
	}
	return s, nil
}

// listen takes the address, if it is safe to.
func (s *Server) listen() error {
	l, err := net.Listen("tcp", s.opts.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	at, _ := l.Addr().(*net.TCPAddr)
	if safe := s.guard.secure && s.guard.token() != ""; !safe && !s.opts.Insecure && (at == nil || !at.IP.IsLoopback()) {
		return errors.Join(fmt.Errorf("listen: other machines can reach %s: give a certificate and a token (--tls-cert, --tls-key, --token-file), or say --insecure", l.Addr()), l.Close())
	}
	sockets, err := proc.OpenSockets()
	if err != nil {
		s.opts.Warn("who connects over the loopback device is not known, so that nobody may read without a token: " + err.Error())
	}
	s.listener = newAdmission(l, sockets, s.lost)
	return nil
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Loss counts what was refused and left out.
func (s *Server) Loss() []loss.Counter {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	return append(s.lost.Counters(), foldedSeries.Counter(s.history.folded))
}

// Run serves until ctx ends; then what is being answered has a few seconds. An error is
// one after which nothing is served. It is called once.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	noting, enough := context.WithCancel(ctx)
	var note sync.WaitGroup
	note.Go(func() {
		select {
		case <-s.opts.Begun:
			s.remember(noting)
		case <-noting.Done():
		}
	})
	defer func() {
		enough()
		note.Wait()
	}()
	go func() {
		if s.guard.secure {
			failed <- s.http.ServeTLS(s.listener, "", "")
		} else {
			failed <- s.http.Serve(s.listener)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	close(s.ending)
	end, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	if err := s.http.Shutdown(end); err != nil { // somebody is slow
		return s.http.Close()
	}
	return nil
}

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// complaints hears what package http complains of: who connects can make it complain of
// them, and nobody is told of that.
type complaints func(string)

func (c complaints) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic")) {
		c("the server: " + render.Clean(string(line)))
	}
	return len(line), nil
}
