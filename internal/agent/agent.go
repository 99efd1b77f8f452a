// Package agent traces every process of a machine that uses CUDA, for months: it reads
// the settings, keeps itself within its limits and the newest records on disk, and has
// what was seen served, pushed and watched.
package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/confine"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/oomdir"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/server"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/settings"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/workload"
	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
)

// Options are those of Run.
type Options struct {
	Sources settings.Sources
	// Warn receives sentences for the log, from any goroutine.
	Warn func(string)
	// Insist is called for a signal that comes while the agent ends: it ends the process
	// once the probes are off.
	Insist func(syscall.Signal)
	// Version and CommandLine are copied into every snapshot.
	Version, CommandLine string
}

// usageInterval is how often the agent looks at what it takes.
const usageInterval = 5 * time.Second

// The ways in which the agent itself loses something.
var (
	causes           loss.Causes
	lossNotBegun     = causes.Add("recordings_not_begun", "failed attempts to begin a recording: nothing was recorded until the next attempt")
	lossOOMUnwritten = causes.Add("oom_reports_not_written", "out-of-memory reports that could not be written")
	lossReload       = causes.Add("reloads_refused", "reloads of the configuration that were refused: the previous configuration stays in use")
)

// An agent runs.
type agent struct {
	opts     Options
	config   *settings.Config
	session  tracing
	pulse    pulse
	notify   *notifier
	recorder *recorder   // nil for none
	oom      *oomdir.Dir // nil for none
	limits   *limiter
	costs    costs
	// How much Go's garbage collector takes.
	collecting collecting
	reports    reports
	reported   atomic.Int64 // out-of-memory reports that came
	lost       *loss.Set
	finder     *workload.Finder
	leaks      *leaks.Search
	told       alert.Log
	server     atomic.Pointer[server.Server] // nil for none
	socket     *net.UnixListener             // nil for none
	serves     *slot
	pushes     *slot
	posts      *slot
	webhook    atomic.Pointer[alert.Webhook] // nil for none
	// measuring: the cost of BPF programs is being measured. unmeasured: that failed, and the log
	// says so.
	measuring, unmeasured atomic.Bool

	alerts *alert.Watch // only the goroutine that runs the agent calls methods other than Loss

	mu        sync.Mutex
	recorded  string // why there is no recording now, "" for another reason or none
	recording string // the path of the recording that is written, "" for none
}

// A tracing is a trace that is asked for before it begins.
type tracing struct {
	*session.Session
	begun chan struct{} // closed when Session is there: the probes are on, every process was looked at
}

// errBegins says that a trace has not begun.
var errBegins = errors.New("the agent is still attaching probes and looking at the running processes")

// ready says why not everything that goes on is seen, nil if it is. Anybody may hear it.
func (a *agent) ready() error {
	select {
	case <-a.session.begun:
		return a.pulse.within(standsStill)
	default:
		return errBegins
	}
}

// notSeen says which processes are not traced, or not in full, a line for each user and
// reason.
func (a *agent) notSeen() (lines []string) {
	if a.ready() != nil {
		return nil
	}
	for _, n := range a.session.NotSeen() {
		lines = append(lines, n.String())
	}
	return lines
}

// healthy says why the agent is to be started afresh, nil if it is not.
func (a *agent) healthy() error { return a.pulse.within(dead) }

// Run traces until SIGTERM or SIGINT, of which a second one gives up what is not pushed or
// written yet, or until nothing more can be traced. SIGHUP reads the settings again. The
// process is to end after that: these signals end it no more by themselves.
func Run(o Options) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	a, err := start(o)
	if err != nil {
		return err
	}
	err = a.run(signals)
	go func() {
		for sig := range signals {
			if sig == syscall.SIGTERM || sig == syscall.SIGINT {
				o.Insist(sig.(syscall.Signal))
			}
		}
	}()
	a.notify.stopping()
	watched := removal.Watch(o.Warn)
	defer watched()
	return errors.Join(err, a.close())
}

func start(o Options) (_ *agent, err error) {
	a, err := prepare(o, true)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	c := a.config
	if a.notify, err = newNotifier(); err != nil {
		return nil, err
	}
	if c.Record != "" {
		if a.recorder, err = openRecorder(c.Record); err != nil {
			return nil, err
		}
	}
	if c.OOMDir != "" {
		if a.oom, err = oomdir.Open(c.OOMDir, 0o700, true); err != nil {
			return nil, err
		}
		a.oom.Keep(c.OOMMax)
		if c.Record != "" && c.Tensors {
			a.oom.Explain(func() string { path, _ := a.newestRecording(); return path }, o.Warn)
		}
	}
	collectWithin(c.MemoryLimit)
	// The server starts now, so that /readyz can say why the agent is not ready.
	for _, s := range []*slot{a.posts, a.serves} {
		if err := s.start(c); err != nil {
			return nil, err
		}
	}
	if err := a.trace(); err != nil {
		return nil, err
	}
	a.record()
	a.watchAlerts()
	return a, a.pushes.start(c)
}

// prepare reads the settings, listens at the socket if it is to serve, and gives up the privileges
// that are not needed.
func prepare(o Options, serve bool) (*agent, error) {
	a := &agent{opts: o, lost: loss.New(causes), alerts: alert.NewWatch(nil), session: tracing{begun: make(chan struct{})}}
	a.leaks = leaks.New(&a.session)
	a.serves, a.pushes, a.posts = a.serverSlot(), a.pushSlot(), a.webhookSlot()
	var err error
	if a.config, err = o.Sources.Load(); err != nil {
		return nil, err
	}
	if c := a.config; serve && c.Socket != settings.Off { // to set its group takes a privilege
		if a.socket, err = server.ListenSocket(c.Socket, c.SocketGroup); err != nil {
			return nil, err
		}
	}
	if !a.config.BPFCost {
		if err := confine.Capabilities(); err != nil {
			o.Warn("the agent keeps all its privileges: " + err.Error())
		}
	}
	a.limits = newLimiter(a.config.Tensors || a.config.Window > 0)
	a.finder = workload.New(workload.Sockets)
	return a, nil
}

// node is what this machine is called.
func (a *agent) node(c *settings.Config) string {
	if c.Node != "" {
		return c.Node
	}
	name, _ := os.Hostname()
	return name
}

// slots are those of all parts, in the order in which they start.
func (a *agent) slots() []*slot { return []*slot{a.posts, a.serves, a.pushes} }

// trace puts the probes on.
func (a *agent) trace() error {
	o := a.config.Options()
	o.All, o.Follow, o.GPUMemory, o.Loss = true, true, true, a.Loss
	o.OutOfMemory, o.OutOfMemoryMax = a.outOfMemory, reportsAtOnce
	o.Warn, o.Version, o.CommandLine = a.opts.Warn, a.opts.Version, a.opts.CommandLine
	s, err := session.Start(o)
	if err != nil {
		return err
	}
	a.session.Session = s
	a.pulse.begin()
	close(a.session.begun)
	return nil
}

// close ends what start began.
func (a *agent) close() error {
	var err error
	for _, s := range a.slots() {
		s.end()
	}
	if a.socket != nil {
		err = a.socket.Close()
	}
	if a.session.Session != nil {
		err = errors.Join(err, a.session.Close())
	}
	if a.finder != nil {
		a.finder.Close()
	}
	a.recorder.close()
	return err
}

// Loss counts what the agent and its parts lost.
func (a *agent) Loss() []loss.Counter {
	return slices.Concat(a.lost.Counters(), a.finder.Loss(), a.alerts.Loss(), a.posts.Loss(), a.serves.Loss(), a.pushes.Loss())
}

// run goes on until a signal ends it, or a failure.
func (a *agent) run(signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { a.pulse.watch(ctx, a.notify, a.session.Seen) })
	watching.Go(func() { a.leaks.Run(ctx) })
	defer func() {
		cancel()
		watching.Wait()
	}()
	a.notify.ready()
	a.opts.Warn("tracing every process that uses CUDA; SIGTERM ends it, SIGHUP reads the configuration again")
	usage := time.NewTicker(usageInterval)
	defer usage.Stop()
	interval := time.NewTicker(a.config.Interval)
	defer interval.Stop()
	for {
		select {
		case err := <-a.session.Failed():
			return err
		case sig := <-signals:
			switch sig {
			case syscall.SIGHUP:
				a.reload()
				interval.Reset(a.config.Interval)
			case syscall.SIGTERM, syscall.SIGINT:
				return nil
			}
		case <-usage.C:
			a.limit()
			a.session.Tell(a.finder.Names)
			if n, changed := a.reports.allow(clock.Monotonic(), int(a.reported.Load())); changed {
				a.session.AllowReports(n)
			}
		case <-interval.C:
			a.observe()
			a.measure(ctx)
			if !a.pushes.runs() {
				a.session.Reported() // who pushes reports by itself
			}
			a.record()
			if a.notify != nil {
				a.notify.status(a.status())
			}
		}
	}
}

// limit looks at what the agent takes and for whom, and sheds more or less.
func (a *agent) limit() {
	collectWithin(a.config.MemoryLimit)
	memory, err := OwnMemory()
	if err != nil {
		return // nothing is known
	}
	now, reading := a.session.Costs()
	costs, worked := a.costs.since(now, reading, a.collecting.factor())
	for _, c := range a.limits.observe(clock.Monotonic(), Usage{worked, memory}, Bounds{a.config.MemoryLimit, a.config.CPULimit}, costs) {
		if err := a.session.Shed(c.Consumer, c.shed, c.why); err != nil {
			a.opts.Warn(err.Error())
		}
		if c.more {
			a.opts.Warn(c.why)
		} else {
			a.opts.Warn(fmt.Sprintf("The agent is below its limits again: more calls of %s get a call stack.", Cost{Consumer: c.Consumer}.who()))
		}
	}
	a.collecting.spare(a.limits.load, a.config.CPULimit)
}

// measured is for how long BPF programs are measured at a time.
const measured = 500 * time.Millisecond

// measure has the kernel measure what BPF programs cost, for a moment.
func (a *agent) measure(ctx context.Context) {
	if !a.config.BPFCost || !a.measuring.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer a.measuring.Store(false)
		if err := a.session.Measure(ctx, measured); err != nil && a.unmeasured.CompareAndSwap(false, true) {
			a.opts.Warn(err.Error())
		}
	}()
}

// status is a line for people.
func (a *agent) status() string {
	processes, held := 0, int64(0)
	a.session.Read(func(s *state.State) {
		for range s.Living {
			processes++
		}
		for _, p := range s.Processes() {
			held += p.Inuse + p.Managed + p.Host + p.Imported + p.Graph
		}
	})
	text := fmt.Sprintf("%d processes have %s in use", processes, bytefmt.Format(held))
	if lines := a.notSeen(); len(lines) > 0 {
		text += ". Not seen: " + lines[0] // the rest is at /readyz
	}
	return strings.Join(append([]string{text}, a.limits.why()...), ". ")
}

// record begins a recording where there is to be one and is not.
func (a *agent) record() {
	if a.recorder == nil || a.recorder.name != "" && a.recorder.max == a.config.RecordMax {
		return
	}
	err := a.recorder.begin(a.session.Session, a.config.RecordMax, a.config.RecordOld, time.Now())
	if err == nil {
		a.mu.Lock()
		a.recorded, a.recording = "", filepath.Join(a.recorder.path, a.recorder.name)
		a.mu.Unlock()
		return
	}
	a.lost.Add(lossNotBegun, 1)
	if text := err.Error(); text != a.recorded {
		a.recorded = text
		a.opts.Warn(text)
	}
}

// newestRecording returns the path of the recording that is written, "" for none, and from
// when on it has records.
func (a *agent) newestRecording() (string, time.Time) {
	a.mu.Lock()
	path := a.recording
	a.mu.Unlock()
	if path == "" {
		return "", time.Time{}
	}
	since, err := beginOf(path)
	if err != nil {
		return "", time.Time{}
	}
	return path, since
}

// outOfMemory takes one report.
func (a *agent) outOfMemory(in *state.Incident) {
	a.reported.Add(1)
	if s := a.server.Load(); s != nil {
		s.Incident(in)
	}
	if a.oom == nil {
		return
	}
	o := in.OutOfMemory(state.Want{Driver: true})
	page, err := a.oom.Write(o)
	if page == "" {
		a.lost.Add(lossOOMUnwritten, 1)
	} else {
		a.opts.Warn(fmt.Sprintf("process %d ran out of GPU memory: see %s", o.PID, page))
	}
	if err != nil {
		a.opts.Warn(err.Error())
	}
}

// reload reads the settings again. What is wrong with them leaves the old ones.
func (a *agent) reload() {
	a.notify.reloading()
	defer a.notify.ready()
	next, err := a.opts.Sources.Load()
	if err != nil {
		a.lost.Add(lossReload, 1)
		a.opts.Warn("the configuration stays as it is: " + err.Error())
		return
	}
	merged, change := settings.Merge(a.config, next)
	for _, s := range change.Refused {
		a.opts.Warn(fmt.Sprintf("%s cannot change while the agent runs: it stays %q", s.Name, s))
	}
	if err := merged.Check(); err != nil {
		a.lost.Add(lossReload, 1)
		a.opts.Warn("the configuration stays as it is: " + err.Error())
		return
	}
	old := a.config
	a.config = merged
	a.apply(old, change.Applied)
	changed := "nothing changed"
	if len(change.Applied) > 0 {
		changed = strings.Join(change.Applied, ", ") + " changed"
	}
	a.opts.Warn("read the configuration again: " + changed)
}

// apply has what changed take effect.
func (a *agent) apply(old *settings.Config, changed []string) {
	collectWithin(a.config.MemoryLimit)
	if a.oom != nil {
		a.oom.Keep(a.config.OOMMax)
	}
	a.record()
	if slices.Contains(changed, "alert") {
		if !a.alerts.HasRules() { // a new rule does not report earlier failures
			a.alerts.Observe(clock.Monotonic(), a.session.Totals())
		}
		a.watchAlerts()
	}
	for _, s := range a.slots() {
		s.restart(old, a.config, changed)
	}
}
