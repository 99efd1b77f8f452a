// Package metrics shows sums of a trace to Prometheus: by GPU, kind and owner, and where
// that is wanted by process. A scrape names no stack.
//
// Its label sets are bounded: owners and GPUs by state.Group, processes by
// Options.PerProcess. What a traced program chooses is a label's value, escaped and cut,
// and never a name. Series that fall together are added up.
package metrics

import (
	"cmp"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A Source is a running trace: *session.Session is one. A recording would be.
type Source interface {
	// Totals wait for nothing but the driver's figures.
	Totals() *state.Totals
}

// A Workload is what runs a process: each is "" where it is not known.
type Workload struct{ Namespace, Pod, Container, Service, Job string }

// A BPF is what the kernel measured of the tracer's BPF programs, and for how long: it does
// so only while somebody has it do so, because that costs time for each run.
type BPF struct {
	Run, Measured time.Duration
	Runs          uint64
}

// NotSeen are processes of a user that are not traced, or not in full, for one reason.
type NotSeen struct {
	User      string
	Reason    string
	Processes int
}

// Options configure Metrics.
type Options struct {
	Source Source
	// PerProcess is how many processes at most have series of their own: those that came
	// first, for as long as they live.
	PerProcess int
	// Workload, if set, says what runs a process. It waits for nothing.
	Workload func(pid int) Workload
	// Loss, if set, is what was lost elsewhere than in the trace: causes with names of
	// their own.
	Loss func() []loss.Counter
	// NotSeen, if set, are processes that are not traced, or not in full: one for each
	// user and reason. It waits for nothing.
	NotSeen func() []NotSeen
	// BPF, if set, is what BPF programs cost so far.
	BPF func() BPF
}

// Metrics is a prometheus.Collector, for any number of goroutines.
type Metrics struct {
	opts Options

	mu       sync.Mutex // one scrape at a time
	admitted map[int]bool
}

// New returns the Metrics of a source.
func New(opts Options) *Metrics { return &Metrics{opts: opts, admitted: map[int]bool{}} }

const (
	// maxScrapes bounds the scrapes that go on at a time, and scrapeTimeout is how long one
	// may take.
	maxScrapes    = 4
	scrapeTimeout = 10 * time.Second
)

// Handler serves the metrics, with those of this process: its CPU time, memory and
// descriptors.
func (m *Metrics) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout})
}

// Describe is part of prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descs() {
		out <- d
	}
}

// A process has counters of its own.
type process struct{ snapshot.Process }

// A use is what a process has on a GPU.
type use struct {
	state.Use
	held  int64
	known bool
}

// A whole is what all families without labels are of.
type whole struct {
	totals             *state.Totals
	took               time.Duration
	living, seriesless int64
	bpf                BPF
}

// Collect is part of prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	begin := time.Now()
	t := m.opts.Source.Totals()
	w := &whole{totals: t, took: time.Since(begin)}
	if m.opts.BPF != nil {
		w.bpf = m.opts.BPF()
	}
	groups(out, t)
	seen := map[string]bool{}
	for i := range t.GPUs {
		g := &t.GPUs[i]
		label := Label(g.GPU)
		if seen[label] {
			continue // one label twice would fail the scrape
		}
		seen[label] = true
		for j := range gpuFamilies {
			gpuFamilies[j].send(out, g, label)
		}
		out <- prometheus.MustNewConstMetric(gpuInfoDesc, gauge, 1, label, Label(g.Name))
	}
	m.processes(out, w)
	for i := range wholeFamilies {
		wholeFamilies[i].send(out, w)
	}
	if m.opts.NotSeen != nil {
		for _, n := range m.opts.NotSeen() {
			out <- prometheus.MustNewConstMetric(notSeenDesc, gauge, float64(n.Processes), Label(n.User), n.Reason)
		}
	}
	// A counter that begins at 1 looks to Prometheus as if it had not risen.
	failures := map[string]int64{}
	for i := range t.GPUs {
		failures[t.GPUs[i].GPU] = 0
	}
	for i := range t.Groups {
		failures[t.Groups[i].GPU] = 0
	}
	maps.Copy(failures, t.OutOfMemory)
	sum(out, outOfMemoryDesc, maps.All(failures))
	lost := t.Loss
	if m.opts.Loss != nil {
		lost = append(slices.Clone(lost), m.opts.Loss()...)
	}
	sum(out, lossDesc, func(yield func(string, uint64) bool) {
		for _, c := range lost {
			if !yield(c.Name, c.Value) {
				return
			}
		}
	})
	out <- prometheus.MustNewConstMetric(buildDesc, gauge, 1, Label(t.Meta.Version), runtime.Version(), Label(t.Meta.StackMode))
}

// groups gives out what is of a GPU, kind and owner.
func groups(out chan<- prometheus.Metric, t *state.Totals) {
	type labels struct{ gpu, kind, owner string }
	rows, order := map[labels]*state.GroupTotals{}, []labels(nil)
	for i := range t.Groups {
		g := &t.Groups[i]
		k := labels{Label(g.GPU), g.Kind.String(), Label(g.Owner)}
		row := rows[k]
		if row == nil {
			row = &state.GroupTotals{}
			rows[k] = row
			order = append(order, k)
		}
		row.LiveObjects += g.LiveObjects
		row.LiveBytes += g.LiveBytes
		row.PeakBytes += g.PeakBytes
		row.Counts.Add(&g.Counts)
	}
	for _, k := range order {
		for i := range groupFamilies {
			groupFamilies[i].send(out, rows[k], k.gpu, k.kind, k.owner)
		}
	}
}

// sum gives out counters of one label, those of which fall together as one.
func sum[N int64 | uint64](out chan<- prometheus.Metric, desc *prometheus.Desc, values func(func(string, N) bool)) {
	sums := map[string]float64{}
	for name, value := range values {
		sums[Label(name)] += float64(value)
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		out <- prometheus.MustNewConstMetric(desc, counter, sums[name], name)
	}
}

// processes gives out the series of single processes, and counts those without.
func (m *Metrics) processes(out chan<- prometheus.Metric, w *whole) {
	alive := map[int]*process{}
	var order []int
	for i := range w.totals.Processes {
		p := &w.totals.Processes[i]
		if p.Exited {
			continue
		}
		w.living++
		if m.opts.PerProcess > 0 && alive[p.PID] == nil {
			alive[p.PID] = &process{*p}
			order = append(order, p.PID)
		}
	}
	if m.opts.PerProcess <= 0 {
		return
	}
	maps.DeleteFunc(m.admitted, func(pid int, _ bool) bool { return alive[pid] == nil })
	labels := map[int][]string{}
	for _, pid := range order {
		if !m.admitted[pid] && len(m.admitted) >= m.opts.PerProcess {
			w.seriesless++
			continue
		}
		m.admitted[pid] = true
		var x Workload
		if m.opts.Workload != nil {
			x = m.opts.Workload(pid)
		}
		p := alive[pid]
		labels[pid] = []string{strconv.Itoa(pid), Label(p.Name), Label(x.Namespace), Label(x.Pod), Label(x.Container), Label(x.Service), Label(x.Job)}
		for i := range processFamilies {
			processFamilies[i].send(out, p, labels[pid]...)
		}
	}
	for _, u := range uses(w.totals) {
		if of := labels[u.PID]; of != nil {
			for i := range useFamilies {
				useFamilies[i].send(out, &u, append([]string{Label(u.GPU)}, of...)...)
			}
		}
	}
}

// uses returns what each process has on each GPU, by what it allocated there and by its
// account.
func uses(t *state.Totals) []use {
	type key struct {
		pid int
		gpu string
	}
	at := map[key]*use{}
	of := func(pid int, gpu string) *use {
		k := key{pid, Label(gpu)}
		if at[k] == nil {
			at[k] = &use{Use: state.Use{PID: pid, GPU: gpu}}
		}
		return at[k]
	}
	for i := range t.Uses {
		u := &t.Uses[i]
		x := of(u.PID, u.GPU)
		x.Live += u.Live
		x.Peak += u.Peak
		x.Objects += u.Objects
	}
	for i := range t.Accounts {
		a := &t.Accounts[i]
		x := of(a.PID, a.GPU)
		x.held += a.Total
		x.known = a.Known
	}
	out := make([]use, 0, len(at))
	for _, u := range at {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b use) int { return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPU, b.GPU)) })
	return out
}

// maxLabel bounds the value of a label, in bytes.
const maxLabel = 200

// Label returns s as the value of a label: what does not print is escaped, and what is too
// long is cut.
func Label(s string) string { return render.Cut(s, maxLabel) }
