// Package workload asks the container runtime of this machine for the names of pods.
package workload

import (
	"context"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Bounds of a Finder.
const (
	maxContainers = 1024 // that are remembered, those asked for last
	maxWaiting    = 1024 // containers in the queue

	firstRetry = 250 * time.Millisecond // doubled each time
	lastRetry  = 5 * time.Minute
	// After so many times a container counts as one without names.
	fruitless = 3
)

var causes loss.Causes

var lossUnnamed = causes.Add("workloads_unnamed", "containers of pods without a name, because no container runtime answered")

// A Finder finds the names of pods and containers, and remembers them. It is safe for
// concurrent use.
type Finder struct {
	runtimes []*endpoint
	losses   *loss.Set
	end      context.Context
	close    context.CancelFunc
	running  sync.WaitGroup
	asks     chan question

	mu         sync.Mutex
	containers *lru.Cache[question, *container]
}

// A question is which container of which pod has to be named.
type question struct{ id, uid string }

// A container is what a runtime answered about one in a pod.
type container struct {
	names
	known  bool
	asking bool
	times  int // that it was asked for in vain
	next   time.Time
}

// New returns a Finder that works until Close. It asks at each of some sockets, such as
// Sockets, until one knows.
func New(sockets []string) *Finder {
	f := &Finder{
		losses:     loss.New(causes),
		asks:       make(chan question, maxWaiting),
		containers: lru.New[question, *container](maxContainers, nil),
	}
	for _, socket := range sockets {
		f.runtimes = append(f.runtimes, newEndpoint(socket))
	}
	f.end, f.close = context.WithCancel(context.Background())
	f.running.Go(func() {
		for {
			select {
			case q := <-f.asks:
				f.ask(q)
			case <-f.end.Done():
				return
			}
		}
	})
	return f
}

// Close ends the Finder.
func (f *Finder) Close() {
	f.close()
	f.running.Wait()
	for _, r := range f.runtimes {
		r.client.CloseIdleConnections()
	}
}

// Loss returns every cause of loss of workloads.
func (f *Finder) Loss() []loss.Counter { return f.losses.Counters() }

// Names returns the names of the pod and the container that a process belongs to, as far
// as they are missing and a runtime has told them. It does not wait: it has a runtime
// asked if that is due.
func (f *Finder) Names(known snapshot.Who) (who snapshot.Who) {
	if known.PodUID == "" || known.ContainerID == "" || known.Pod != "" {
		return who
	}
	q := question{known.ContainerID, known.PodUID}
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.containers.Get(q)
	if !ok {
		c = &container{}
		f.containers.Add(q, c)
	}
	if !c.known && !c.asking && !time.Now().Before(c.next) {
		select {
		case f.asks <- q:
			c.asking = true
		default: // another time
		}
	}
	who.Namespace, who.Pod, who.Container = c.namespace, c.pod, c.container
	return who
}

// ask asks the runtimes for a container.
func (f *Finder) ask(q question) {
	var got names
	err := errUnknown
	for _, r := range f.runtimes {
		if got, err = r.names(f.end, q.id); err == nil && got.uid != q.uid {
			err = errUnknown
		}
		if err == nil {
			break
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.containers.Get(q)
	if !ok { // it was forgotten since
		return
	}
	c.asking = false
	if err == nil {
		c.names, c.known = got, true
		return
	}
	c.next = time.Now().Add(min(firstRetry<<min(c.times, 20), lastRetry))
	if c.times++; c.times == fruitless {
		f.losses.Add(lossUnnamed, 1)
	}
}
