// Package server shows a running trace over HTTP: profiles for readers of pprof, JSON for
// programs, a page for people, metrics, and the agent's health.
//
// No request changes anything. No parameter is a path. Requests at the same time share
// snapshots and answers that are costly.
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
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A Source is the trace that is shown: *session.Session.
type Source interface {
	View(state.Want) *state.View
	// Totals does not wait for names.
	Totals() *state.Totals
	Done() <-chan struct{}
}

// Options configure a Server.
type Options struct {
	Source Source
	// Socket, if set, is a listener like ListenSocket's: whoever can connect there may read. Run
	// closes it.
	Socket  net.Listener
	Address string // of TCP, such as "localhost:9844"; "" for none
	// WebConfig is the path of a web configuration file as Prometheus's exporters have, for TCP,
	// "" for none. The server reads it again when it changes.
	WebConfig string
	// Insecure serves TCP without passwords, or without TLS for other machines.
	Insecure bool
	Metrics  http.Handler
	// Begun is closed when the trace begins. Before that, the server refuses requests that need
	// Source or Metrics.
	Begun <-chan struct{}
	// Ready returns why the trace does not see everything, nil if it does, and Healthy why this
	// program needs a restart. Everybody may read both. They do not wait.
	Ready, Healthy func() error
	// NotSeen returns a line for each process that the trace does not see although it is ready.
	// Everybody may read them. It does not wait.
	NotSeen func() []string
	// Alerts returns the alerts that fire, and then those that ended, the latest first.
	// Leaks returns the leaks that were found, the largest growth of now first.
	Alerts func() []alert.Alert
	Leaks  func() []leaks.Leak
	// Recording returns the path of the recording that is written, "" for none, and
	// from when on it has records.
	Recording func() (path string, since time.Time)
	// Labels returns more labels for the samples of a process in a profile, by name.
	Labels    func(*snapshot.Process) map[string]string
	Profiling bool // serve Go's profiles of this process too
	// Before, if set, is the server before this one, which has ended. This server goes on with
	// its history and incidents.
	Before *Server
	// Warn receives sentences for the user, from any goroutine.
	Warn func(string)
}

const (
	maxHeader     = 16 << 10 // bytes
	headerWithin  = 5 * time.Second
	requestWithin = 10 * time.Second // with its body
	answerWithin  = 30 * time.Second // unless it takes long by design: see takesTime
	idleFor       = time.Minute
	endWithin     = 2 * time.Second
	maxRequests   = 64  // at a time
	maxConnected  = 256 // at each listener, at a time
	maxWindows    = 16  // at a time
)

var causes loss.Causes

var (
	lossRefused   = causes.Add("http_requests_refused", "HTTP requests refused because too many came at once")
	lossIncidents = causes.Add("http_oom_reports_dropped", "out-of-memory reports that the page and the API no longer have, because newer ones came")
	lossSeries    = causes.Add("http_history_owners_full", "points of the live timeline in which an owner's memory is shown together with that of other owners because there were too many")
	lossPresences = causes.Add("http_history_processes_full", "times that the live timeline put the memory of a process with that of others because there were too many processes")
)

// errEnding means that the server ends.
var errEnding = errors.New("ending")

// errBegins means that the trace has not begun.
var errBegins = errors.New("the trace has not begun yet: /readyz says why")

// A Server shows a trace.
type Server struct {
	opts      Options
	tcp       net.Listener // nil for none
	http      *http.Server
	guard     guard
	looks     *looks
	incidents *incidents
	history   *history
	lost      *loss.Set

	requests chan struct{} // has a slot for each of maxRequests
	windows  chan struct{}
	ending   chan struct{} // closed to end requests that wait
}

// New listens, and Run serves. An error says which option is wrong or not safe, or why New
// cannot listen.
func New(o Options) (*Server, error) {
	s := &Server{opts: o, lost: loss.New(causes), requests: make(chan struct{}, maxRequests), windows: make(chan struct{}, maxWindows), ending: make(chan struct{})}
	s.guard = guard{passwords: newPasswords()}
	if name, err := os.Hostname(); err == nil {
		s.guard.host = name
	}
	if o.WebConfig != "" {
		var err error
		if s.guard.web, err = loadWebConfig(o.WebConfig, o.Warn); err != nil {
			return nil, err
		}
	}
	s.http = &http.Server{
		ReadHeaderTimeout: headerWithin, ReadTimeout: requestWithin, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(complaints(o.Warn), "", 0),
	}
	if s.guard.web != nil {
		s.http.TLSConfig = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.guard.web.Get().tls, nil }}
	}
	s.looks = newLooks(live.NewTraceSource(o.Source))
	s.http.Handler = s.handler()
	if o.Socket != nil {
		s.opts.Socket = netutil.LimitListener(o.Socket, maxConnected)
	}
	if err := s.listen(); err != nil {
		return nil, err
	}
	s.history, s.incidents = &history{}, &incidents{}
	if b := o.Before; b != nil {
		s.opts.Before, s.history, s.incidents = nil, b.history, b.incidents
	}
	s.history.lost, s.history.presences.lost = s.lost, s.lost
	return s, nil
}

// listen listens at the address of the options, if there is one and that is safe.
func (s *Server) listen() error {
	o := &s.opts
	if o.Address == "" {
		return nil
	}
	if s.guard.web == nil && !o.Insecure {
		return fmt.Errorf("listen at %s: everybody that can connect could read: give --web-config, or say --insecure", o.Address)
	}
	l, err := net.Listen("tcp", o.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if at, _ := l.Addr().(*net.TCPAddr); !o.Insecure {
		web := s.guard.web.Get()
		switch {
		case !web.asksWho():
			err = fmt.Errorf("everybody that can connect could read: %s needs basic_auth_users, or client_auth_type RequireAndVerifyClientCert; or say --insecure", o.WebConfig)
		case web.tls == nil && (at == nil || !at.IP.IsLoopback()):
			err = fmt.Errorf("passwords would be sent in the clear: %s needs tls_server_config; or say --insecure", o.WebConfig)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("listen at %s: %w", l.Addr(), err), l.Close())
		}
	}
	s.tcp = netutil.LimitListener(l, maxConnected)
	return nil
}

// Addresses returns where the server listens.
func (s *Server) Addresses() (at []string) {
	for _, l := range []net.Listener{s.opts.Socket, s.tcp} {
		if l != nil {
			at = append(at, l.Addr().String())
		}
	}
	return at
}

// serveTCP accepts connections of TCP.
func (s *Server) serveTCP() error {
	if s.guard.web == nil || s.guard.web.Get().tls == nil {
		return s.http.Serve(s.tcp)
	}
	return s.http.ServeTLS(s.tcp, "", "")
}

// Loss returns the counters of refused requests and of figures that were left out.
func (s *Server) Loss() []loss.Counter { return s.lost.Counters() }

// Run serves until ctx ends. Requests at that moment have endWithin to finish. After an error
// nothing is served. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, 2)
	noting, enough := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		select {
		case <-s.opts.Begun:
			s.remember(noting)
		case <-noting.Done():
		}
	})
	defer func() {
		enough()
		all.Wait()
	}()
	if s.opts.Socket != nil {
		all.Go(func() { failed <- s.http.Serve(s.opts.Socket) })
	}
	if s.tcp != nil {
		all.Go(func() { failed <- s.serveTCP() })
	}
	select {
	case err := <-failed:
		return errors.Join(fmt.Errorf("serve: %w", err), s.http.Close())
	case <-ctx.Done():
	}
	close(s.ending)
	end, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	if err := s.http.Shutdown(end); err != nil { // a client is slow
		return s.http.Close()
	}
	return nil
}

// complaints is the error log of package http. It passes on panics only: clients can cause
// all other messages, and nobody needs to read those.
type complaints func(string)

func (c complaints) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic")) {
		c("the server: " + render.Clean(string(line)))
	}
	return len(line), nil
}
