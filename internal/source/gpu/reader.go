package gpu

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const (
	// patience bounds the wait for the driver's figures: a faulty driver may never answer.
	patience = 2 * time.Second
	// Readings use at most one part in readingShare of the time, and there is at least readingPause
	// between two of them.
	readingShare = 10
	readingPause = 100 * time.Millisecond
	// openPatience bounds the start of NVML. It takes seconds if the driver must set a GPU up first.
	openPatience = 20 * time.Second
)

// A Library is *NVML, or a test's.
type Library interface {
	Devices() ([]Device, error)
	Processes(Device) ([]ProcessUse, error)
	Use(Device, int) (ProcessUse, error)
	Close() error
}

// A Reader reads the driver's figures on request. Only its own goroutine calls the library, so that no other waits
// without a bound.
type Reader struct {
	library  Library
	devices  []Device
	subjects func() []record.Subject
	report   func(*record.Reading)
	now      func() uint64

	ordinals map[event.Process]map[int32]Device // of Run's goroutine

	soon chan struct{}
	asks chan chan struct{}
	end  chan struct{}
	done chan struct{} // closed when Run has ended

	// Memory: each reading has the memory of the GPUs. The caller sets it before Run.
	Memory bool

	mu       sync.Mutex
	unlisted map[string]bool // by label of a GPU: the driver does not list its processes
	memory   bool            // the next reading has the memory of the GPUs
	since    time.Time       // when the present reading began, zero for none
	lost     *loss.Set
}

var causes loss.Causes

var lossLate = causes.Add("driver_readings_late", "readings of the driver's totals that took too long: the previous readings were used instead")

// OpenReader starts to open NVML, which takes tens of milliseconds or more. wait returns the Reader (see
// NewReader) and the driver's version, "" if it is not known.
func OpenReader(subjects func() []record.Subject, report func(*record.Reading), now func() uint64) (wait func() (*Reader, string, error)) {
	var reader *Reader
	var version string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, failed := Open()
		if err = failed; err != nil {
			return
		}
		version, _ = n.DriverVersion()
		if reader, err = NewReader(n, subjects, report, now); err != nil {
			n.Close()
		}
	}()
	return func() (*Reader, string, error) {
		select {
		case <-done:
			return reader, version, err
		case <-time.After(openPatience):
			return nil, "", fmt.Errorf("NVML has not answered for %v", openPatience)
		}
	}
}

// NewReader returns a Reader of the devices that l has now. It calls report with figures of the processes that
// subjects returns. now returns CLOCK_MONOTONIC in nanoseconds.
func NewReader(l Library, subjects func() []record.Subject, report func(*record.Reading), now func() uint64) (*Reader, error) {
	devices, err := l.Devices()
	if err != nil {
		return nil, err
	}
	return &Reader{library: l, devices: devices, subjects: subjects, report: report, now: now,
		ordinals: map[event.Process]map[int32]Device{}, unlisted: map[string]bool{}, soon: make(chan struct{}, 1), asks: make(chan chan struct{}),
		end: make(chan struct{}), done: make(chan struct{}), lost: loss.New(causes)}, nil
}

// Run reads until Close.
func (r *Reader) Run() {
	defer close(r.done)
	var next time.Time // no reading before this, unless Ask was called
	for {
		var asked chan struct{}
		select {
		case <-r.end:
			return
		case asked = <-r.asks:
		case <-r.soon:
		}
		if asked == nil && !r.wait(next, &asked) {
			return
		}
		began := time.Now()
		memory := r.begin(began)
		r.report(r.read(memory))
		r.begin(time.Time{})
		next = time.Now().Add(max(readingPause, time.Since(began)*(readingShare-1)))
		if asked != nil {
			close(asked)
		}
	}
}

// wait waits until next or a call of Ask. It returns false if Run must end.
func (r *Reader) wait(next time.Time, asked *chan struct{}) bool {
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case *asked = <-r.asks:
		return true
	case <-r.end:
		return false
	}
}

// begin records the beginning of a reading, or with a zero time its end.
func (r *Reader) begin(at time.Time) (memory bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = at
	if !at.IsZero() {
		memory, r.memory = r.Memory || r.memory, false
	}
	return memory
}

// Soon requests a reading, with memory that of the GPUs too. It does not wait.
func (r *Reader) Soon(memory bool) {
	r.mu.Lock()
	r.memory = r.memory || memory
	r.mu.Unlock()
	select {
	case r.soon <- struct{}{}:
	default: // there is a request already
	}
}

// Ask requests a reading, and waits for its report, but not longer than patience.
func (r *Reader) Ask() {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	asked := make(chan struct{})
	select {
	case r.asks <- asked:
	case <-r.done:
		return
	case <-timer.C:
		r.lost.Add(lossLate, 1)
		return
	}
	select {
	case <-asked:
	case <-timer.C:
		r.lost.Add(lossLate, 1)
	}
}

// Close ends Run and closes the library, unless the library does not answer.
func (r *Reader) Close() error {
	close(r.end)
	select {
	case <-r.done:
		return r.library.Close()
	case <-time.After(patience):
		return nil
	}
}

// Loss returns every cause of loss.
func (r *Reader) Loss() []loss.Counter { return r.lost.Counters() }

// Notes returns a sentence for each thing that the driver does not say.
func (r *Reader) Notes() (notes []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.since.IsZero() && time.Since(r.since) >= patience {
		notes = append(notes, fmt.Sprintf("the driver has not answered for %.0f s: its own totals are those of before", time.Since(r.since).Seconds()))
	}
	var memory, processes []string
	for _, d := range r.devices {
		if d.Reason == "" && !d.Memory.Known && !d.MIG {
			memory = append(memory, d.Label())
		}
		if r.unlisted[d.Label()] {
			processes = append(processes, d.Label())
		}
	}
	if memory != nil {
		notes = append(notes, "the driver does not say how much memory there is, or is in use, on GPU "+strings.Join(memory, ", "))
	}
	if processes != nil {
		notes = append(notes, "the driver does not say which processes use GPU "+strings.Join(processes, ", ")+": a total there is the sum of what was seen, and nothing compares it")
	}
	return notes
}

func (r *Reader) read(memory bool) *record.Reading {
	out := &record.Reading{Begin: r.now()}
	devices := r.devices
	if memory {
		if fresh, err := r.library.Devices(); err == nil && len(fresh) == len(devices) {
			devices = fresh
		} else {
			memory = false
		}
	}
	for _, d := range devices {
		out.Devices = append(out.Devices, r.device(d, memory))
	}
	for _, d := range devices {
		for _, instance := range d.Instances {
			out.Devices = append(out.Devices, r.identity(instance))
		}
	}
	lists := make([]map[int]snapshot.GPUProcess, len(devices))
	for i := range lists {
		lists[i] = map[int]snapshot.GPUProcess{}
		for _, p := range out.Devices[i].Processes {
			lists[i][p.PID] = p
		}
	}
	subjects := r.subjects()
	present := make(map[event.Process]bool, len(subjects))
	for _, s := range subjects {
		present[s.Process] = true
		var listed []string
		for i, d := range devices {
			on, ok := lists[i][int(s.Process.PID)]
			if !ok {
				continue
			}
			listed = append(listed, d.UUID)
			if on.Known && out.Devices[i].Listed { // Use would list all processes of the device again
				out.Uses = append(out.Uses, record.Use{Process: s.Process, Device: i, Bytes: on.Bytes, Known: true})
			} else if use, err := r.library.Use(d, int(s.Process.PID)); err == nil {
				out.Uses = append(out.Uses, record.Use{Process: s.Process, Device: i, Bytes: use.Bytes, Known: use.Known, Inferred: use.Inferred})
			}
		}
		if listed != nil || slices.ContainsFunc(out.Devices, func(d record.Device) bool { return !d.Listed && d.Instance < 0 }) {
			r.resolve(s, listed)
		}
		r.number(out, s.Process)
	}
	maps.DeleteFunc(r.ordinals, func(id event.Process, _ map[int32]Device) bool {
		return !present[id]
	})
	out.Time = r.now()
	return out
}

// identity returns the record of d without what it holds.
func (r *Reader) identity(d Device) record.Device {
	out := record.Device{UUID: d.UUID, Label: d.Label(), Name: d.Name, Total: d.Memory.Total, Instance: -1}
	out.GPU, out.GPUKnown = driverID(d, r.devices)
	if d.Parent != "" {
		out.Instance = int32(d.GPUInstance)
		out.GPUKnown = out.GPUKnown && d.GPUInstance >= 0 // else it would look like the whole GPU
	}
	return out
}

func (r *Reader) device(d Device, memory bool) record.Device {
	out := r.identity(d)
	if memory {
		out.Used, out.Free, out.MemoryKnown = d.Memory.Used, d.Memory.Free, d.Memory.Known
	}
	uses, err := r.library.Processes(d)
	out.Listed = err == nil
	r.mu.Lock()
	r.unlisted[d.Label()] = errors.Is(err, ErrUnsupported) || errors.Is(err, ErrMissing)
	r.mu.Unlock()
	for _, u := range uses {
		out.Processes = append(out.Processes, snapshot.GPUProcess{PID: u.PID, Name: u.Name, Bytes: u.Bytes, Known: u.Known})
	}
	return out
}

// number adds the ordinals of a process to out.
func (r *Reader) number(out *record.Reading, id event.Process) {
	for _, ordinal := range slices.Sorted(maps.Keys(r.ordinals[id])) {
		d := r.ordinals[id][ordinal]
		i := slices.IndexFunc(out.Devices, func(x record.Device) bool { return x.UUID == d.UUID })
		if i < 0 {
			i = len(out.Devices)
			out.Devices = append(out.Devices, r.identity(d))
		}
		out.Ordinals = append(out.Ordinals, record.Ordinal{Process: id, Ordinal: ordinal, Device: i})
	}
}

// resolve finds the GPUs of the ordinals that a process uses. listed are the UUIDs of the devices on which NVML lists it.
func (r *Reader) resolve(s record.Subject, listed []string) {
	known := keyed.Map(r.ordinals, s.Process)
	if len(listed) == 1 {
		for _, d := range r.devices {
			if d.UUID == listed[0] {
				known[event.NoDevice] = d
			}
		}
	} else {
		delete(known, event.NoDevice)
	}
	if !slices.ContainsFunc(s.Ordinals, func(o int32) bool { _, ok := known[o]; return !ok }) {
		return
	}
	evidence, err := Look(int(s.Process.PID))
	if err != nil {
		return // it has ended: the known ordinals stay
	}
	for _, o := range s.Ordinals {
		evidence.Used = append(evidence.Used, int(o))
	}
	evidence.Listed = listed
	found, err := Resolve(r.devices, evidence)
	if err != nil {
		return
	}
	for o, d := range found {
		known[int32(o)] = d
	}
}
