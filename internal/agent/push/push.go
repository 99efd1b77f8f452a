// Package push sends profiles of every traced process, at an interval, to whatever receives
// OTLP.
//
// One view of the state serves all targets. Each target has a queue and a goroutine of
// its own: a slow or broken target affects neither the others nor the tracer.
// A request is encoded once, with the times and identities of its profiles. These bytes are sent
// until the target acknowledges or refuses them, or a full queue drops them.
package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/outbox"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const (
	// DefaultInterval is from one profile of a process to the next.
	DefaultInterval = time.Minute
	// DefaultQueueMax is in bytes, of all targets together.
	DefaultQueueMax = 64 << 20
	// grace is the time for queued requests when Run ends.
	grace = 5 * time.Second
)

// A Source is a trace of every process, of which nobody else takes Reports.
type Source interface {
	// Report returns a view of the state, after which ended processes are not shown,
	// and what was allocated before it is no more in state.Want's Unreported. It is
	// asked once more when Run ends.
	Report(state.Want) *state.View
}

// Options are those of New.
type Options struct {
	Source Source
	// Targets are URLs of receivers, "http://host:4318" or "grpc://host:4317", with the path before
	// that of OTLP if there is one.
	Targets []string
	// Interval is DefaultInterval if zero, and a second at least.
	Interval time.Duration
	// QueueMax bounds the bytes that wait for all targets. Zero means DefaultQueueMax.
	QueueMax int64
	// HeaderFile has headers to send: see readHeaders. Nothing else has credentials.
	HeaderFile string
	// Insecure lets credentials go over a connection that is not encrypted.
	Insecure bool
	Node     string // of SeriesLabels
	Version  string // of gpumemtrace
	// Warn takes sentences for the log: a target that fails, and one that answers again.
	Warn func(string)
}

// A Pusher pushes until Run ends. It is safe for concurrent use.
type Pusher struct {
	opts    Options
	collect *collector
	targets []*sender
	loss    *loss.Set
	grace   time.Duration
}

// New returns a Pusher, or an error for a target or a header file that is not valid.
func New(o Options) (_ *Pusher, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("push: %w", err)
		}
	}()
	o.Interval = max(cmp.Or(o.Interval, DefaultInterval), time.Second)
	o.QueueMax = cmp.Or(o.QueueMax, DefaultQueueMax)
	if len(o.Targets) == 0 {
		return nil, errors.New("no target")
	}
	p := &Pusher{opts: o, loss: loss.New(causes), grace: grace}
	p.collect = newCollector(o, p.loss)
	headers, err := openHeaders(o.HeaderFile, o.Warn)
	if err != nil {
		return nil, err
	}
	for _, t := range o.Targets {
		s, err := newSender(t, &o, headers, p.loss, o.QueueMax/int64(len(o.Targets)))
		if err != nil {
			return nil, err
		}
		p.targets = append(p.targets, s)
	}
	return p, nil
}

// Run pushes until ctx ends, then once more, and waits for a few seconds for what is
// queued. It counts the profiles that no target acknowledged by then. Run is for one call.
func (p *Pusher) Run(ctx context.Context) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wait sync.WaitGroup
	for _, s := range p.targets {
		wait.Go(func() { s.Run(sending) })
	}
	// Agents that start together do not push together.
	next := time.NewTimer(time.Duration(rand.Int64N(int64(p.opts.Interval))))
	defer next.Stop()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-next.C:
			next.Reset(p.opts.Interval)
		}
		p.push()
	}
	for _, s := range p.targets {
		s.End()
	}
	timer := time.AfterFunc(p.grace, stop)
	defer timer.Stop()
	wait.Wait()
	return nil
}

// push takes a view and queues it for each target.
func (p *Pusher) push() {
	p.requests(func(m *outbox.Message) {
		for _, s := range p.targets {
			s.Put(m)
		}
	})
}

const (
	// wanted is what a request has, in bytes, before the next one is begun, and maxBody
	// what it has at most: receivers of gRPC take 4 MiB.
	wanted  = 1 << 20
	maxBody = 4 << 20
)

// A draft is a request as it grows.
type draft struct {
	*otlp
	profiles int
}

// requests yields the requests of the interval that ends now.
func (p *Pusher) requests(yield func(*outbox.Message)) {
	var d draft
	finish := func() {
		if d.profiles == 0 {
			return
		}
		if body := d.body(); len(body) > maxBody {
			p.loss.Add(lossLarge, uint64(d.profiles)*uint64(len(p.targets)))
		} else {
			yield(&outbox.Message{Parts: d.profiles, Body: body})
		}
		d = draft{}
	}
	for x := range p.collect.profiles {
		if d.profiles == 0 {
			d.otlp = newOTLP(p.opts.Version)
		}
		d.add(x)
		if d.profiles++; d.size >= wanted {
			finish()
		}
	}
	finish()
}

// Loss returns every cause of loss, zero ones included.
func (p *Pusher) Loss() []loss.Counter { return p.loss.Counters() }

// The causes of loss. One that is of profiles counts each once for every target.
var (
	causes      loss.Causes
	lossFull    = causes.Add("push_queue_full", "profiles dropped, the oldest first, because the push queue was full")
	lossRefused = causes.Add("push_refused", "profiles that a target refused for good")
	lossGaveUp  = causes.Add("push_gave_up", "profiles dropped because a target failed on them again and again")
	lossUnsent  = causes.Add("push_unsent", "profiles that no target had acknowledged when the agent ended")
	lossLarge   = causes.Add("push_too_large", "profiles dropped because their request would have been larger than 4 MiB")
	lossBuilt   = causes.Add("push_not_built", "profiles that could not be made")
	lossAgain   = causes.Add("push_retries", "requests that were sent again: if only the answer was lost, the target has their profiles twice, under the same times and identities")
)
