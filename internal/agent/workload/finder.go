package workload

import (
	"context"
	"errors"
	"os/user"
	"strconv"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// Bounds of a Finder.
const (
	maxProcesses  = 8192 // that are remembered, those asked for last
	maxContainers = 1024 // likewise
	maxUsers      = 1024 // likewise
	maxWaiting    = 1024 // processes, and containers, in a queue
	maxHanging    = 8    // reads of environments that do not come back
	readers       = 2

	environPatience = time.Second
	userPatience    = time.Second
	firstRetry      = 250 * time.Millisecond // doubled each time
	lastRetry       = 5 * time.Minute
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
	loss.Of("workloads_ended", "processes that ended before it was read who they belong to"),
	loss.Of("workloads_environ", "processes whose environment could not be read in time: the service or job may be missing"),
	loss.Of("workloads_unnamed", "containers of pods whose names no container runtime told: is its socket there, and may it be used?"),
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

	reads    chan event.Process
	asks     chan question
	environs chan struct{} // a token for each read that is not back
	lookups  chan struct{} // likewise for users: one for each reader

	mu         sync.Mutex
	processes  *lru.Cache[event.Process, *process]
	containers *lru.Cache[question, *container]
	users      *lru.Cache[uint32, string]
}

// A process is what is known of one.
type process struct {
	read     bool
	workload Workload
}

// A question is which container of which pod has to be named.
type question struct{ id, uid string }

// A container is what a runtime told of one in a pod.
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
		node:       bounded(o.Node),
		losses:     loss.New(Losses),
		reads:      make(chan event.Process, maxWaiting),
		asks:       make(chan question, maxWaiting),
		environs:   make(chan struct{}, maxHanging),
		lookups:    make(chan struct{}, readers),
		processes:  lru.New[event.Process, *process](maxProcesses, nil),
		containers: lru.New[question, *container](maxContainers, nil),
		users:      lru.New[uint32, string](maxUsers, nil),
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
	id := event.Process{PID: uint32(pid), Start: start - start%event.StartUnit} // as /proc tells it
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.processes.Get(id)
	if !ok {
		select {
		case f.reads <- id:
			f.processes.Put(id, &process{})
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
		f.containers.Put(q, c)
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
	if !ok { // it was forgotten meanwhile
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

// read finds out what a process itself tells.
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

// look reads a process. Of one that ended meanwhile it returns the node alone.
func (f *Finder) look(id event.Process) (Workload, error) {
	none, pid := Workload{Node: f.node}, int(id.PID)
	groups, err := proc.Cgroups(pid)
	if err != nil {
		return none, err
	}
	status, err := proc.ReadStatus(pid)
	if err != nil {
		return none, err
	}
	// What is mapped where the environment lies may keep a reader waiting for ever.
	const service, job = "OTEL_SERVICE_NAME", "SLURM_JOB_ID"
	environ, ok := within(f.environs, environPatience, func() map[string]string {
		set, err := proc.Environ(pid, service, job)
		if err != nil {
			return nil
		}
		return set
	})
	// All was of this process if it is still there.
	if err := is(id); err != nil {
		return none, err
	}
	if !ok || environ == nil {
		f.losses.Add(lostEnviron, 1)
	}
	p := placeOf(groups)
	w := Workload{Node: f.node, PodUID: p.pod, ContainerID: p.container, Service: bounded(p.unit), Job: p.job, User: f.user(status.User)}
	if name := environ[service]; name != "" {
		w.Service = bounded(name)
	}
	if number := environ[job]; w.Job == "" && isDigits(number) {
		w.Job = number
	}
	return w, nil
}

// user returns a user's name, or number where this machine knows no name, or does not
// say in time: it may ask a directory in the network.
func (f *Finder) user(uid uint32) string {
	f.mu.Lock()
	name, ok := f.users.Get(uid)
	f.mu.Unlock()
	if ok {
		return name
	}
	number := strconv.FormatUint(uint64(uid), 10)
	name, ok = within(f.lookups, userPatience, func() string {
		u, err := user.LookupId(number)
		if err != nil {
			return number
		}
		return bounded(u.Username)
	})
	if !ok {
		return number
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users.Put(uid, name)
	return name
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

// within returns what f returns, if it does so in time. Otherwise f goes on by itself,
// and keeps its token; without a free token it is not called.
func within[T any](tokens chan struct{}, patience time.Duration, f func() T) (v T, ok bool) {
	select {
	case tokens <- struct{}{}:
	default:
		return v, false
	}
	done := make(chan T, 1)
	go func() {
		defer func() { <-tokens }()
		done <- f()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v = <-done:
		return v, true
	case <-timer.C:
		return v, false
	}
}
