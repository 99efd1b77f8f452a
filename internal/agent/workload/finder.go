package workload

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

// Bounds of a Finder.
const (
	maxProcesses  = 8192 // that are remembered, those asked for last
	maxContainers = 1024 // the same
	maxWaiting    = 1024 // processes, and containers, in a queue
	readers       = 2

	firstRetry = 250 * time.Millisecond // doubled each time
	lastRetry  = 5 * time.Minute
	// After so many times a container counts as one without names.
	fruitless = 3
)

// How a Finder can lose something, by index in its losses.
const (
	lostEnded = iota
	lostEnviron
	lostNames
)

// Losses are the ways to lose something of a workload.
var Losses = loss.Causes{
	loss.Of("workloads_ended", "processes that ended before their owner was read"),
	loss.Of("workloads_environ", "processes whose environment could not be read in time: the service or job may be missing"),
	loss.Of("workloads_unnamed", "containers of pods without a name, because no container runtime answered"),
}

// Options are what a Finder goes by.
type Options struct {
	Node string // of this machine
	// Sockets are where to ask for the names of pods, the first that knows counts:
	// nil for Sockets' defaults, empty for nowhere.
	Sockets []string
}

// A Finder finds workloads, and remembers them. It is safe for concurrent use.
type Finder struct {
	node     string
	runtimes []*endpoint
	losses   *loss.Set
	end      context.Context
	close    context.CancelFunc
	running  sync.WaitGroup

	tenants *tenant.Reader
	reads   chan event.Process
	asks    chan question

	mu         sync.Mutex
	processes  *lru.Cache[event.Process, *process]
	containers *lru.Cache[question, *container]
}

// A process is what is known of one.
type process struct {
	read     bool
	workload Workload
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

// New returns a Finder that works until Close.
func New(o Options) *Finder {
	f := &Finder{
		node:       tenant.Bounded(o.Node),
		losses:     loss.New(Losses),
		reads:      make(chan event.Process, maxWaiting),
		asks:       make(chan question, maxWaiting),
		tenants:    tenant.NewReader(),
		processes:  lru.New[event.Process, *process](maxProcesses, nil),
		containers: lru.New[question, *container](maxContainers, nil),
	}
	if o.Sockets == nil {
		o.Sockets = Sockets
	}
	for _, socket := range o.Sockets {
		f.runtimes = append(f.runtimes, newEndpoint(socket))
	}
	f.end, f.close = context.WithCancel(context.Background())
	for range readers {
		f.running.Go(func() { serve(f.end, f.reads, f.read) })
	}
	f.running.Go(func() { serve(f.end, f.asks, f.ask) })
	return f
}

// Close ends the Finder. What hangs in a process or in this machine's table of users
// is not waited for.
func (f *Finder) Close() {
	f.close()
	f.running.Wait()
	for _, r := range f.runtimes {
		r.client.CloseIdleConnections()
	}
}

// Loss returns a counter for each of Losses.
func (f *Finder) Loss() []loss.Counter { return f.losses.Counters() }

// Of returns what is known of a process that began at a time in nanoseconds since boot
// (event.Process), and whether that is all that is expected. The first time it is asked
// for it is not: it will be soon, and stays so after the process has ended. Of does not
// wait.
func (f *Finder) Of(pid int, start uint64) (Workload, bool) {
	id := event.Process{PID: uint32(pid), Start: start - start%event.StartUnit} // as in /proc
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.processes.Get(id)
	if !ok {
		select {
		case f.reads <- id:
			f.processes.Add(id, &process{})
		default: // another time
		}
	}
	if !ok || !p.read {
		return Workload{Node: f.node}, false
	}
	w, known := p.workload, true
	if w.PodUID != "" && w.ContainerID != "" && len(f.runtimes) > 0 {
		var c *container
		c, known = f.named(question{w.ContainerID, w.PodUID})
		w.Namespace, w.Pod, w.Container = c.namespace, c.pod, c.container
	}
	return w, known
}

// named returns a container, and whether no more is expected of it. It has a runtime
// asked if that is due. The lock is held.
func (f *Finder) named(q question) (*container, bool) {
	c, ok := f.containers.Get(q)
	if !ok {
		c = &container{}
		f.containers.Add(q, c)
	}
	if !c.known && !c.asking && !time.Now().Before(c.next) {
		select {
		case f.asks <- q:
			c.asking = true
		default:
		}
	}
	return c, c.known || c.times >= fruitless
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
		f.losses.Add(lostNames, 1)
	}
}

// read reads what a process shows about itself.
func (f *Finder) read(id event.Process) {
	w, err := f.look(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.losses.Add(lostEnded, 1)
	}
	if p, ok := f.processes.Get(id); ok {
		p.read, p.workload = true, w
	}
}

var errAnother = errors.New("another process by now")

// is returns an error unless a process is the one with its pid.
func is(id event.Process) error {
	ticks, err := proc.StartTicks(int(id.PID))
	if err == nil && ticks != id.Ticks() {
		err = errAnother
	}
	return err
}

// look reads a process. Of one that has ended it returns the node alone.
func (f *Finder) look(id event.Process) (Workload, error) {
	none, pid := Workload{Node: f.node}, int(id.PID)
	who, whole, err := f.tenants.Of(pid)
	if err != nil {
		return none, err
	}
	// All was of this process if it is still there.
	if err := is(id); err != nil {
		return none, err
	}
	if !whole {
		f.losses.Add(lostEnviron, 1)
	}
	return Workload{f.node, who}, nil
}

// serve calls do with what comes through a channel, until the end.
func serve[T any](end context.Context, from <-chan T, do func(T)) {
	for {
		select {
		case v := <-from:
			do(v)
		case <-end.Done():
			return
		}
	}
}
