package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/metrics"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/push"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/server"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/settings"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A runner is a part that runs beside the trace: *server.Server, *push.Pusher.
type runner interface {
	Run(context.Context) error
	Loss() []loss.Counter
}

// A slot has one part of the agent, or none, and starts it afresh when its settings
// change.
type slot struct {
	name string
	// settings are those that it is made with.
	settings []string
	// open makes it as the settings say, nil for none.
	open func(*settings.Config) (runner, error)
	warn func(string)

	mu      sync.Mutex
	runner  runner
	stop    context.CancelFunc
	stopped chan struct{}
	ended   []loss.Counter // of those before
}

// start starts the part. If the settings ask for none, or on an error, no part runs.
func (s *slot) start(c *settings.Config) error {
	r, err := s.open(c)
	if err != nil || r == nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	s.mu.Lock()
	s.runner, s.stop, s.stopped = r, cancel, stopped
	s.mu.Unlock()
	go func() {
		defer close(stopped)
		if err := r.Run(ctx); err != nil {
			s.warn(fmt.Sprintf("%s: %v", s.name, err))
		}
	}()
	return nil
}

// end ends the part, and waits for that.
func (s *slot) end() {
	s.mu.Lock()
	stop, stopped := s.stop, s.stopped
	s.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	<-stopped
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = loss.Sum(s.ended, s.runner.Loss())
	s.runner, s.stop, s.stopped = nil, nil, nil
}

// restart starts the part afresh if its settings changed. If it cannot start as they say
// it goes on as it was, as far as that is possible, and next has what it had.
func (s *slot) restart(old, next *settings.Config, changed []string) {
	if !slices.ContainsFunc(changed, func(name string) bool { return slices.Contains(s.settings, name) }) {
		return
	}
	s.end()
	err := s.start(next)
	if err == nil {
		return
	}
	s.warn(fmt.Sprintf("%s stays as it was: %v", s.name, err))
	next.Revert(old, s.settings...)
	if err := s.start(old); err != nil {
		s.warn(fmt.Sprintf("%s: %v", s.name, err))
	}
}

// runs reports whether there is one.
func (s *slot) runs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runner != nil
}

// Loss counts what the part has lost, and those before it.
func (s *slot) Loss() []loss.Counter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runner == nil {
		return s.ended
	}
	return loss.Sum(s.ended, s.runner.Loss())
}

// serverSlot is the slot of what is served over HTTP.
func (a *agent) serverSlot() *slot {
	return &slot{
		name: "http", warn: a.opts.Warn,
		settings: []string{"web-config", "insecure", "pprof", "per-process-metrics", "node"},
		open: func(c *settings.Config) (runner, error) {
			if a.socket == nil && c.Listen == "" {
				return nil, nil
			}
			socket, err := a.shareSocket()
			if err != nil {
				return nil, err
			}
			s, err := server.New(server.Options{
				Source: &a.session, Begun: a.session.begun, Ready: a.ready, Healthy: a.healthy, NotSeen: a.notSeen,
				Socket: socket, Address: c.Listen, WebConfig: c.WebConfig, Insecure: c.Insecure,
				Metrics: a.metrics(c), Labels: a.sampleLabels(c), Profiling: c.Profiling, Warn: a.opts.Warn, Before: a.server.Load(),
				Alerts: a.told.All, Leaks: a.leaks.Found, Recording: a.newestRecording,
			})
			if err != nil {
				if socket != nil {
					err = errors.Join(err, socket.Close())
				}
				return nil, err
			}
			a.server.Store(s)
			for _, at := range s.Addresses() {
				a.opts.Warn("listening at " + at)
			}
			return s, nil
		},
	}
}

// shareSocket returns a listener at the agent's socket for one server, nil for none.
func (a *agent) shareSocket() (net.Listener, error) {
	if a.socket == nil {
		return nil, nil
	}
	return server.Share(a.socket)
}

func (a *agent) metrics(c *settings.Config) http.Handler {
	o := metrics.Options{Source: &a.session, PerProcess: c.PerProcessMetrics, NotSeen: func() []probes.NotSeen { return a.session.NotSeen() }}
	if c.BPFCost {
		o.BPF = func() probes.RunTime { return a.session.RunTime() }
	}
	return metrics.New(o).Handler()
}

// pushSlot is the slot of what is pushed.
func (a *agent) pushSlot() *slot {
	return &slot{
		name: "push", warn: a.opts.Warn,
		settings: []string{"push-otlp", "push-interval", "push-queue-max", "push-header-file", "node", "insecure"},
		open: func(c *settings.Config) (runner, error) {
			if len(c.PushOTLP) == 0 {
				return nil, nil
			}
			return push.New(push.Options{
				Source: a.session.Session, Targets: c.PushOTLP, Interval: c.PushInterval, QueueMax: c.PushQueueMax,
				HeaderFile: c.PushHeaderFile, Insecure: c.Insecure, Node: a.node(c), Version: a.opts.Version, Warn: a.opts.Warn,
			})
		},
	}
}

// sampleLabels returns the labels of the samples of a process in a profile that is not
// pushed: those of the series that a pushed one is in.
func (a *agent) sampleLabels(c *settings.Config) func(*snapshot.Process) map[string]string {
	node := a.node(c)
	return func(p *snapshot.Process) map[string]string {
		out := map[string]string{}
		for _, l := range push.SeriesLabels(node, &p.Who, p.Name, p.PID) {
			out[l.Name] = l.Value
		}
		delete(out, "pid") // samples have it where there are several: profiles of one compare
		return out
	}
}
