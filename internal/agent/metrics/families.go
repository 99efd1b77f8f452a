package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const namespace = "gpumemtrace_"

// Labels of the families.
var (
	groupLabels = []string{"gpu", "kind", "owner"}
	gpuLabels   = []string{"gpu"}
	// The labels after process are of its workload, "" if it is not known.
	processLabels = []string{"pid", "process", "namespace", "pod", "container", "service", "job"}
	useLabels     = append([]string{"gpu"}, processLabels...)
)

// A family is a Prometheus metric family. It has one metric for each T.
type family[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*T) (float64, bool)
}

func newFamily[T any](kind prometheus.ValueType, name, help string, labels []string, value func(*T) (float64, bool)) family[T] {
	return family[T]{prometheus.NewDesc(namespace+name, help, labels, nil), kind, value}
}

// send sends the metric of x, if its value is known.
func (f *family[T]) send(out chan<- prometheus.Metric, x *T, labels ...string) {
	if v, ok := f.value(x); ok {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, v, labels...)
	}
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// number returns a family of whole numbers that are always known.
func number[T any](kind prometheus.ValueType, name, help string, labels []string, value func(*T) int64) family[T] {
	return newFamily(kind, name, help, labels, func(x *T) (float64, bool) { return float64(value(x)), true })
}

// groupFamilies have a metric for each GPU, kind and owner of memory.
var groupFamilies = []family[state.GroupFigures]{
	number(gauge, "live_bytes", "Memory in use, in bytes. With --tensors, the tensors and the cached memory of PyTorch's allocator are kinds of their own.", groupLabels, func(g *state.GroupFigures) int64 { return g.LiveBytes }),
	number(gauge, "live_allocations", "Allocations in use.", groupLabels, func(g *state.GroupFigures) int64 { return g.LiveObjects }),
	number(gauge, "peak_bytes", "Memory in use at the peak of its process, in bytes. It is a sum over processes, and each process has its peak at a time of its own.", groupLabels, func(g *state.GroupFigures) int64 { return g.PeakBytes }),
	number(counter, "allocated_bytes_total", "Memory ever allocated, in bytes, including by processes that have ended. A tensor counts twice: as a tensor, and in the memory of its segment, under that memory's kind.", groupLabels, func(g *state.GroupFigures) int64 { return g.AllocBytes }),
	number(counter, "allocations_total", "Allocations ever made.", groupLabels, func(g *state.GroupFigures) int64 { return g.AllocObjects }),
	number(counter, "freed_bytes_total", "Memory ever freed, in bytes, including memory that the end of its process freed.", groupLabels, func(g *state.GroupFigures) int64 { return g.FreedBytes }),
	number(counter, "frees_total", "Allocations that ended.", groupLabels, func(g *state.GroupFigures) int64 { return g.FreedObjects }),
	number(counter, "failed_allocations_total", "Allocation calls that failed, for whatever reason.", groupLabels, func(g *state.GroupFigures) int64 { return g.FailedObjects }),
}

// gpuFamilies have a metric for each GPU, or each instance of a GPU.
var gpuFamilies = []family[state.GPUFigures]{
	newFamily(gauge, "gpu_capacity_bytes", "The GPU's memory, in bytes, as NVML reports it.", gpuLabels, read(func(g *state.GPUFigures) int64 { return g.Total })),
	newFamily(gauge, "gpu_used_bytes", "The GPU's memory that is in use, by whatever process, in bytes, as NVML reports it.", gpuLabels, read(func(g *state.GPUFigures) int64 { return g.Used })),
	newFamily(gauge, "gpu_free_bytes", "The GPU's free memory, in bytes, as NVML reports it.", gpuLabels, read(func(g *state.GPUFigures) int64 { return g.Free })),
	newFamily(gauge, "gpu_held_bytes", "The GPU's memory that traced processes hold, in bytes, including what the driver holds for them.", gpuLabels, func(g *state.GPUFigures) (float64, bool) {
		return float64(g.Held), g.Known
	}),
	newFamily(gauge, "residual_bytes", "The GPU's used memory that no traced process holds, in bytes. Other processes or the driver itself hold it.", gpuLabels, func(g *state.GPUFigures) (float64, bool) {
		return float64(g.Residual), g.ResidualKnown
	}),
}

// read returns the value of a family for a figure of NVML. It is known if NVML was read.
func read(value func(*state.GPUFigures) int64) func(*state.GPUFigures) (float64, bool) {
	return func(g *state.GPUFigures) (float64, bool) { return float64(value(g)), g.Total > 0 }
}

// useFamilies have a metric for each process on each GPU.
var useFamilies = []family[use]{
	number(gauge, "process_live_bytes", "Memory that a process has allocated on a GPU, in bytes.", useLabels, func(u *use) int64 { return u.Live }),
	number(gauge, "process_live_allocations", "Allocations of a process in use on a GPU.", useLabels, func(u *use) int64 { return u.Objects }),
	number(gauge, "process_peak_bytes", "Memory that a process had allocated on a GPU when its total on all GPUs was highest, in bytes.", useLabels, func(u *use) int64 { return u.Peak }),
	newFamily(gauge, "process_held_bytes", "Memory that a process holds on a GPU, in bytes, including what the driver holds for it. nvidia-smi shows this figure.", useLabels, func(u *use) (float64, bool) {
		return float64(u.held), u.known
	}),
	windowed(counter, "process_window_seconds_total", "Time in which the tensors of a process on a GPU were traced, in seconds. The other figures of windows (--tensors-window) are of this time alone.", func(x *snapshot.Windowed) float64 { return x.Time.Seconds() }),
	windowed(counter, "process_window_steps_total", "Whole training steps of a process that were seen in windows.", func(x *snapshot.Windowed) float64 { return float64(x.Steps) }),
	windowed(counter, "process_window_tensors_total", "Tensors that a process made on a GPU in windows.", func(x *snapshot.Windowed) float64 { return float64(x.AllocObjects) }),
	windowed(counter, "process_window_tensor_bytes_total", "Bytes of the tensors that a process made on a GPU in windows.", func(x *snapshot.Windowed) float64 { return float64(x.AllocBytes) }),
	windowed(gauge, "process_window_peak_bytes", "What a process had in tensors on a GPU at the highest peak of a training step that was seen in windows, in bytes; of a process without steps, at the highest moment of a window.", func(x *snapshot.Windowed) float64 { return float64(x.Peak) }),
}

// windowed returns a family of tensors that were seen in windows. It is known if there were any.
func windowed(kind prometheus.ValueType, name, help string, value func(*snapshot.Windowed) float64) family[use] {
	return newFamily(kind, name, help, useLabels, func(u *use) (float64, bool) {
		if u.windowed == nil {
			return 0, false
		}
		return value(u.windowed), true
	})
}

// processFamilies have a metric for each process.
var processFamilies = []family[snapshot.Process]{
	number(counter, "process_allocated_bytes_total", "Memory on GPUs that a process ever allocated, in bytes.", processLabels, func(p *snapshot.Process) int64 { return p.Allocated }),
	number(counter, "process_failed_allocations_total", "Allocation calls of a process that failed.", processLabels, func(p *snapshot.Process) int64 { return p.Failed }),
	number(counter, "process_out_of_memory_calls_total", "Allocation calls of a process that failed because memory ran out.", processLabels, func(p *snapshot.Process) int64 { return p.OutOfMemory }),
}

// wholeFamilies have one metric, of the agent and all traced processes.
var wholeFamilies = []family[whole]{
	number(gauge, "processes", "Traced processes that are running.", nil, func(w *whole) int64 { return w.living }),
	number(gauge, "processes_without_series", "Traced processes without series of their own, because there are too many.", nil, func(w *whole) int64 { return w.seriesless }),
	number(counter, "events_total", "Events received from the kernel.", nil, func(w *whole) int64 { return int64(w.totals.Meta.Events) }),
	newFamily(gauge, "scrape_seconds", "Time that it took to add these figures up, in seconds.", nil, func(w *whole) (float64, bool) { return w.took.Seconds(), true }),
	newFamily(counter, "bpf_run_seconds_total", "Run time of the tracer's BPF programs, in seconds, while the kernel measured it.", nil, func(w *whole) (float64, bool) {
		return w.bpf.Run.Seconds(), w.bpf.Measured > 0
	}),
	newFamily(counter, "bpf_runs_total", "Runs of the tracer's BPF programs, while the kernel counted them.", nil, func(w *whole) (float64, bool) {
		return float64(w.bpf.Runs), w.bpf.Measured > 0
	}),
	newFamily(counter, "bpf_measured_seconds_total", "Time during which the kernel measured BPF programs, in seconds. gpumemtrace_bpf_run_seconds_total covers only this time.", nil, func(w *whole) (float64, bool) {
		return w.bpf.Measured.Seconds(), w.bpf.Measured > 0
	}),
}

// Families with labels of their own.
var (
	outOfMemoryDesc = prometheus.NewDesc(namespace+"out_of_memory_total", "Out-of-memory failures. Calls of a thread that fail shortly after each other count as one failure. Failures that the thread recovered from count too.", gpuLabels, nil)
	lossDesc        = prometheus.NewDesc(namespace+"loss_total", "Losses, by the part of the tracer (layer) and the sort of loss (class). docs/losses.md says what to do.", []string{"layer", "class"}, nil)
	notSeenDesc     = prometheus.NewDesc(namespace+"processes_not_seen", "Processes that map a CUDA library but are not traced, or not in full, by user id and reason.", []string{"user", "reason"}, nil)
	gpuInfoDesc     = prometheus.NewDesc(namespace+"gpu_info", "A GPU's model. The value is 1.", []string{"gpu", "model"}, nil)
	buildDesc       = prometheus.NewDesc(namespace+"build_info", "The agent's version, and how stacks are captured. The value is 1.", []string{"version", "goversion", "stacks"}, nil)
)

// descs returns the descriptions of all metrics that Collect may send.
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
