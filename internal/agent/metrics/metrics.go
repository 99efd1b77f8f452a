// Package metrics shows sums of a trace to Prometheus: by GPU, kind and owner, and by process
// if Options.PerProcess is set. A scrape does not name stacks.
//
// The label sets are bounded: owners and GPUs by state.Group, processes by
// Options.PerProcess. Texts that a traced program chooses are only values of labels, escaped
// and cut, never names. Series with the same labels are added up.
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

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A Source is a running trace, such as a *session.Session.
type Source interface {
	// Totals waits only for the driver's figures.
	Totals() *state.Totals
}

// Options configure Metrics.
type Options struct {
	Source Source
	// PerProcess bounds the processes with series of their own. The first ones have them,
	// until they end.
	PerProcess int
	// NotSeen, if set, returns the processes that are not traced, or not in full, by user and
	// reason. It does not wait.
	NotSeen func() []probes.NotSeen
	// BPF, if set, returns the cost of the BPF programs so far. The kernel measures only on
	// request, because a measurement adds time to each run.
	BPF func() probes.RunTime
}

// Metrics is a prometheus.Collector. Any number of goroutines may use it.
type Metrics struct {
	opts Options

	mu       sync.Mutex // one scrape at a time
	admitted map[int]bool
}

// New returns the Metrics of a source.
func New(opts Options) *Metrics { return &Metrics{opts: opts, admitted: map[int]bool{}} }

const (
	// maxScrapes bounds the scrapes at a time, and scrapeTimeout the time of each.
	maxScrapes    = 4
	scrapeTimeout = 10 * time.Second
)

// Handler serves the metrics of the trace, and those of this process: its CPU time, memory
// and file descriptors.
func (m *Metrics) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout})
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descs() {
		out <- d
	}
}

// A use is the memory of a process on a GPU.
type use struct {
	state.Use
	held     int64
	known    bool
	windowed *snapshot.Windowed // nil if no tensors were seen in windows
}

// A whole has the figures of the families without labels.
type whole struct {
	totals             *state.Totals
	took               time.Duration
	living, seriesless int64
	bpf                probes.RunTime
}

// Collect implements prometheus.Collector.
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
			continue // a second metric with the same labels would fail the scrape
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
		sums := map[[2]string]int{} // two long names may have the same beginning
		for _, n := range m.opts.NotSeen() {
			sums[[2]string{Label(n.Name()), n.Why}] += n.Processes
		}
		for of, n := range sums {
			out <- prometheus.MustNewConstMetric(notSeenDesc, gauge, float64(n), of[0], of[1])
		}
	}
	// Every GPU has a counter from 0 on: Prometheus does not see the rise of a counter that
	// begins at 1.
	failures := map[string]int64{}
	for i := range t.GPUs {
		failures[t.GPUs[i].GPU] = 0
	}
	for i := range t.Groups {
		failures[t.Groups[i].GPU] = 0
	}
	maps.Copy(failures, t.OutOfMemory)
	sums := map[string]int64{}
	for gpu, n := range failures {
		sums[Label(gpu)] += n
	}
	for gpu, n := range sums {
		out <- prometheus.MustNewConstMetric(outOfMemoryDesc, counter, float64(n), gpu)
	}
	losses(out, t.Loss)
	out <- prometheus.MustNewConstMetric(buildDesc, gauge, 1, Label(t.Meta.Version), runtime.Version(), Label(t.Meta.StackMode))
}

// groups sends the metrics of each GPU, kind and owner.
func groups(out chan<- prometheus.Metric, t *state.Totals) {
	type labels struct{ gpu, kind, owner string }
	rows, order := map[labels]*state.GroupFigures{}, []labels(nil)
	for i := range t.Groups {
		g := &t.Groups[i]
		k := labels{Label(g.GPU), g.Kind.String(), Label(g.Owner)}
		if rows[k] == nil {
			order = append(order, k)
		}
		row := keyed.At(rows, k)
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

// losses sends a counter for each layer and class of loss.
func losses(out chan<- prometheus.Metric, all []loss.Counter) {
	sums := map[[2]string]float64{}
	for _, c := range all {
		p, _ := loss.PlaceOf(c.Name)
		sums[[2]string{p.Layer, Label(p.Class)}] += float64(c.Value)
	}
	for of, sum := range sums {
		out <- prometheus.MustNewConstMetric(lossDesc, counter, sum, of[0], of[1])
	}
}

// processes sends the series of single processes, and counts the processes without.
func (m *Metrics) processes(out chan<- prometheus.Metric, w *whole) {
	alive := map[int]*snapshot.Process{}
	var order []int
	for i := range w.totals.Processes {
		p := &w.totals.Processes[i]
		if p.Exited {
			continue
		}
		w.living++
		if m.opts.PerProcess > 0 && alive[p.PID] == nil {
			alive[p.PID] = p
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
		p := alive[pid]
		labels[pid] = []string{strconv.Itoa(pid), Label(p.Name), Label(p.Namespace), Label(p.Pod), Label(p.Container), Label(p.Service), Label(p.Job)}
		for i := range processFamilies {
			processFamilies[i].send(out, p, labels[pid]...)
		}
	}
	for _, u := range uses(w.totals) {
		if of := labels[u.PID]; of != nil {
			for i := range useFamilies {
				useFamilies[i].send(out, u, append([]string{Label(u.GPU)}, of...)...)
			}
		}
	}
}

// uses returns the memory of each process on each GPU, from its allocations there and from
// its account.
func uses(t *state.Totals) []*use {
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
	for i := range t.Windowed {
		of(t.Windowed[i].PID, t.Windowed[i].GPU).windowed = &t.Windowed[i]
	}
	for i := range t.Accounts {
		a := &t.Accounts[i]
		x := of(a.PID, a.GPU)
		x.held += a.Total
		x.known = a.Known
	}
	out := slices.Collect(maps.Values(at))
	slices.SortFunc(out, func(a, b *use) int { return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPU, b.GPU)) })
	return out
}

// maxLabel bounds the value of a label, in bytes.
const maxLabel = 200

// Label returns s as the value of a label. Characters that do not print are escaped, and long
// texts are cut.
func Label(s string) string { return render.Cut(s, maxLabel) }
