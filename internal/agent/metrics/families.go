package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const namespace = "gpumemtrace_"

// Labels of the families.
var (
	groupLabels = []string{"gpu", "kind", "owner"}
	gpuLabels   = []string{"gpu"}
	// What runs a process comes with its series, empty where it is not known.
	processLabels = []string{"pid", "process", "namespace", "pod", "container", "service", "job"}
	useLabels     = append([]string{"gpu"}, processLabels...)
)

// A family is the metrics of one name, with a value for each T.
type family[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*T) (float64, bool)
}

func newFamily[T any](kind prometheus.ValueType, name, help string, labels []string, value func(*T) (float64, bool)) family[T] {
	return family[T]{prometheus.NewDesc(namespace+name, help, labels, nil), kind, value}
}

// send gives out the metric of x.
func (f *family[T]) send(out chan<- prometheus.Metric, x *T, labels ...string) {
	if v, ok := f.value(x); ok {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, v, labels...)
	}
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// number is a family of numbers that are always known.
func number[T any](kind prometheus.ValueType, name, help string, labels []string, value func(*T) int64) family[T] {
	return newFamily(kind, name, help, labels, func(x *T) (float64, bool) { return float64(value(x)), true })
}

// groupFamilies are of the memory of one GPU, kind and owner.
var groupFamilies = []family[state.GroupTotals]{
	number(gauge, "live_bytes", "Memory in use, in bytes. Of memory that PyTorch's allocator hands out, tensors and what is cached beside them are kinds of their own, with --tensors.", groupLabels, func(g *state.GroupTotals) int64 { return g.LiveBytes }),
	number(gauge, "live_allocations", "Allocations in use.", groupLabels, func(g *state.GroupTotals) int64 { return g.LiveObjects }),
	number(gauge, "peak_bytes", "Memory in use when its process used most, in bytes: the sum over processes, each at a time of its own.", groupLabels, func(g *state.GroupTotals) int64 { return g.PeakBytes }),
	number(counter, "allocated_bytes_total", "Memory ever allocated, in bytes, by processes that ended too. Tensors lie in memory that is counted by its own kind too.", groupLabels, func(g *state.GroupTotals) int64 { return g.AllocBytes }),
	number(counter, "allocations_total", "Allocations ever made.", groupLabels, func(g *state.GroupTotals) int64 { return g.AllocObjects }),
	number(counter, "freed_bytes_total", "Memory ever freed, in bytes, by the end of its process too.", groupLabels, func(g *state.GroupTotals) int64 { return g.FreedBytes }),
	number(counter, "frees_total", "Allocations that ended.", groupLabels, func(g *state.GroupTotals) int64 { return g.FreedObjects }),
	number(counter, "failed_allocations_total", "Allocation calls that failed, for whatever reason.", groupLabels, func(g *state.GroupTotals) int64 { return g.FailedObjects }),
}

// gpuFamilies are of one GPU, or one instance of a GPU, as NVML says.
var gpuFamilies = []family[state.GPUTotals]{
	newFamily(gauge, "gpu_capacity_bytes", "The GPU's memory, in bytes, as NVML says.", gpuLabels, read(func(g *state.GPUTotals) int64 { return g.Total })),
	newFamily(gauge, "gpu_used_bytes", "What of the GPU's memory is in use by anybody, in bytes, as NVML says.", gpuLabels, read(func(g *state.GPUTotals) int64 { return g.Used })),
	newFamily(gauge, "gpu_free_bytes", "What of the GPU's memory is free, in bytes, as NVML says.", gpuLabels, read(func(g *state.GPUTotals) int64 { return g.Free })),
	newFamily(gauge, "gpu_held_bytes", "What of the GPU's memory traced processes hold, in bytes, with what the driver holds for them.", gpuLabels, func(g *state.GPUTotals) (float64, bool) {
		return float64(g.Held), g.Known
	}),
	newFamily(gauge, "residual_bytes", "What of the GPU's used memory no traced process holds, in bytes: others have it, or the driver for itself.", gpuLabels, func(g *state.GPUTotals) (float64, bool) {
		return float64(g.Residual), g.ResidualKnown
	}),
}

// read is a figure of NVML's, where that was asked for memory.
func read(value func(*state.GPUTotals) int64) func(*state.GPUTotals) (float64, bool) {
	return func(g *state.GPUTotals) (float64, bool) { return float64(value(g)), g.Total > 0 }
}

// useFamilies are of one process on one GPU.
var useFamilies = []family[use]{
	number(gauge, "process_live_bytes", "What a process has allocated on a GPU, in bytes.", useLabels, func(u *use) int64 { return u.Live }),
	number(gauge, "process_live_allocations", "Allocations of a process in use on a GPU.", useLabels, func(u *use) int64 { return u.Objects }),
	number(gauge, "process_peak_bytes", "What a process had allocated on a GPU when it had allocated most on all, in bytes.", useLabels, func(u *use) int64 { return u.Peak }),
	newFamily(gauge, "process_held_bytes", "What a process holds on a GPU, in bytes, with what the driver holds for it: what nvidia-smi shows.", useLabels, func(u *use) (float64, bool) {
		return float64(u.held), u.known
	}),
}

// processFamilies are of one process.
var processFamilies = []family[process]{
	number(counter, "process_allocated_bytes_total", "Memory on GPUs that a process ever allocated, in bytes.", processLabels, func(p *process) int64 { return p.Allocated }),
	number(counter, "process_failed_allocations_total", "Allocation calls of a process that failed.", processLabels, func(p *process) int64 { return p.Failed }),
	number(counter, "process_out_of_memory_calls_total", "Allocation calls of a process that failed for want of memory.", processLabels, func(p *process) int64 { return p.OutOfMemory }),
}

// wholeFamilies are of the agent and of all that it traces.
var wholeFamilies = []family[whole]{
	number(gauge, "processes", "Traced processes that live.", nil, func(w *whole) int64 { return w.living }),
	number(gauge, "processes_without_series", "Traced processes without series of their own, because there are too many.", nil, func(w *whole) int64 { return w.seriesless }),
	number(counter, "events_total", "Events received from the kernel.", nil, func(w *whole) int64 { return int64(w.totals.Meta.Events) }),
	newFamily(gauge, "scrape_seconds", "How long it took to add these figures up.", nil, func(w *whole) (float64, bool) { return w.took.Seconds(), true }),
	newFamily(counter, "bpf_run_seconds_total", "Time that the tracer's BPF programs ran for, in seconds, while the kernel measured it.", nil, func(w *whole) (float64, bool) {
		return w.bpf.Run.Seconds(), w.bpf.Measured > 0
	}),
	newFamily(counter, "bpf_runs_total", "Runs of the tracer's BPF programs, while the kernel counted them.", nil, func(w *whole) (float64, bool) {
		return float64(w.bpf.Runs), w.bpf.Measured > 0
	}),
	newFamily(counter, "bpf_measured_seconds_total", "Time for which the kernel measured BPF programs, in seconds: gpumemtrace_bpf_run_seconds_total is of it.", nil, func(w *whole) (float64, bool) {
		return w.bpf.Measured.Seconds(), w.bpf.Measured > 0
	}),
}

// Families with labels of their own.
var (
	outOfMemoryDesc = prometheus.NewDesc(namespace+"out_of_memory_total", "Failures for want of memory: calls of a thread that fail one soon after the other are one, those that it recovered from count too.", gpuLabels, nil)
	lossDesc        = prometheus.NewDesc(namespace+"loss_total", "What was lost, by cause: /api/v1/top says in loss what each is that is not zero.", []string{"cause"}, nil)
	notSeenDesc     = prometheus.NewDesc(namespace+"processes_not_seen", "Processes that map a library of CUDA's and are not traced, or not in full, by user id and reason.", []string{"user", "reason"}, nil)
	gpuInfoDesc     = prometheus.NewDesc(namespace+"gpu_info", "A GPU's model. The value is 1.", []string{"gpu", "model"}, nil)
	buildDesc       = prometheus.NewDesc(namespace+"build_info", "The agent's version, and how stacks are captured. The value is 1.", []string{"version", "goversion", "stacks"}, nil)
)

// descs are all that Collect may give out.
func descs() (out []*prometheus.Desc) {
	for i := range groupFamilies {
		out = append(out, groupFamilies[i].desc)
	}
	for i := range gpuFamilies {
		out = append(out, gpuFamilies[i].desc)
	}
	for i := range useFamilies {
		out = append(out, useFamilies[i].desc)
	}
	for i := range processFamilies {
		out = append(out, processFamilies[i].desc)
	}
	for i := range wholeFamilies {
		out = append(out, wholeFamilies[i].desc)
	}
	return append(out, outOfMemoryDesc, lossDesc, notSeenDesc, gpuInfoDesc, buildDesc)
}
