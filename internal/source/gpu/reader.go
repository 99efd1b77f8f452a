package gpu

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const (
	// patience bounds how long anybody waits for the driver's figures: a driver
	// in trouble may never answer.
	patience = 2 * time.Second
	// readingShare and readingPause keep readings apart: they take at most one
	// part in so many of the time, and come no sooner after each other.
	readingShare = 10
	readingPause = 100 * time.Millisecond
)

// A Library says what GPUs there are and who holds how much: *NVML.
type Library interface {
	Devices() ([]Device, error)
	Processes(Device) ([]ProcessUse, error)
	Use(Device, int) (ProcessUse, error)
	Close() error
}

// A Reader reads the driver's figures when somebody wants them, and else never.
// Only its goroutine calls the library, so nobody else can be kept waiting by
// it.
type Reader struct {
	library  Library
	devices  []Device
	subjects func() []record.Subject
	tell     func(*record.Reading)
	now      func() uint64

	ordinals map[event.Process]map[int32]Device // of Run's goroutine

	soon chan struct{}
	asks chan chan struct{}
	end  chan struct{}
	done chan struct{} // closed when Run has ended

	// Memory: each reading tells each GPU's memory. It is set before Run.
	Memory bool

	mu     sync.Mutex
	memory bool      // the next reading does
	since  time.Time // when the reading under way began, zero for none
	lost   *loss.Set
}

var causes loss.Causes

var lossLate = causes.Add("driver_readings_late", "readings of the driver's totals that were not waited for: those of before were taken")

// openPatience bounds how long NVML may take to start: seconds where the driver
// must set a GPU up first.
const openPatience = 20 * time.Second

// OpenReader returns a Reader of NVML's figures and the driver's version, "" if
// it is not known. See NewReader.
func OpenReader(subjects func() []record.Subject, tell func(*record.Reading), now func() uint64) (*Reader, string, error) {
	type opened struct {
		r       *Reader
		version string
		err     error
	}
	done := make(chan opened, 1)
	go func() {
		n, err := Open()
		if err != nil {
			done <- opened{err: err}
			return
		}
		r, err := NewReader(n, subjects, tell, now)
		if err != nil {
			n.Close()
		}
		version, _ := n.DriverVersion()
		done <- opened{r, version, err}
	}()
	select {
	case o := <-done:
		return o.r, o.version, o.err
	case <-time.After(openPatience):
		return nil, "", fmt.Errorf("NVML has not answered for %v", openPatience)
	}
}

// NewReader returns a Reader of the devices that l has now. It tells of the
// processes that subjects returns; now is CLOCK_MONOTONIC in nanoseconds.
func NewReader(l Library, subjects func() []record.Subject, tell func(*record.Reading), now func() uint64) (*Reader, error) {
	devices, err := l.Devices()
	if err != nil {
		return nil, err
	}
	return &Reader{library: l, devices: devices, subjects: subjects, tell: tell, now: now,
		ordinals: map[event.Process]map[int32]Device{}, soon: make(chan struct{}, 1), asks: make(chan chan struct{}),
		end: make(chan struct{}), done: make(chan struct{}), lost: loss.New(causes)}, nil
}

// Run reads until Close.
func (r *Reader) Run() {
	defer close(r.done)
	var next time.Time // no reading before, unless somebody asks
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
		r.tell(r.read(memory))
		r.begin(time.Time{})
		next = time.Now().Add(max(readingPause, time.Since(began)*(readingShare-1)))
		if asked != nil {
			close(asked)
		}
	}
}

// wait returns at next or when somebody asks, and false when Run must end.
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

// begin notes that a reading begins, or with a zero time that none is under way.
func (r *Reader) begin(at time.Time) (memory bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = at
	if !at.IsZero() {
		memory, r.memory = r.Memory || r.memory, false
	}
	return memory
}

// Soon has the figures read soon, with each GPU's memory if that is wanted. It
// waits for nothing.
func (r *Reader) Soon(memory bool) {
	r.mu.Lock()
	r.memory = r.memory || memory
	r.mu.Unlock()
	select {
	case r.soon <- struct{}{}:
	default: // a reading is due anyway
	}
}

// Ask has the figures read, and returns when they have been told, or when its
// patience ends: then those of the last reading stand.
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

// Close ends Run and closes the library, unless that does not answer.
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

// Note says that the driver does not answer, "" if it does.
func (r *Reader) Note() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() || time.Since(r.since) < patience {
		return ""
	}
	return fmt.Sprintf("the driver has not answered for %.0f s: its own totals are those of before", time.Since(r.since).Seconds())
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
	told := make(map[event.Process]bool, len(subjects))
	for _, s := range subjects {
		told[s.Process] = true
		var listed []string
		for i, d := range devices {
			on, ok := lists[i][int(s.Process.PID)]
			if !ok {
				continue
			}
			listed = append(listed, d.UUID)
			if on.Known && out.Devices[i].Listed { // to ask for each process has all of the device listed again
				out.Uses = append(out.Uses, record.Use{Process: s.Process, Device: i, Bytes: on.Bytes, Known: true})
			} else if use, err := r.library.Use(d, int(s.Process.PID)); err == nil {
				out.Uses = append(out.Uses, record.Use{Process: s.Process, Device: i, Bytes: use.Bytes, Known: use.Known, Inferred: use.Inferred})
			}
		}
		if listed != nil {
			r.resolve(s, listed)
		}
		r.number(out, s.Process)
	}
	// A process that ended is told of no more.
	maps.DeleteFunc(r.ordinals, func(id event.Process, _ map[int32]Device) bool {
		return !told[id]
	})
	out.Time = r.now()
	return out
}

// identity says which device d is.
func (r *Reader) identity(d Device) record.Device {
	out := record.Device{UUID: d.UUID, Label: d.Label(), Name: d.Name, Instance: -1}
	out.GPU, out.GPUKnown = driverID(d, r.devices)
	if d.Parent != "" {
		out.Instance = int32(d.GPUInstance)
		out.GPUKnown = out.GPUKnown && d.GPUInstance >= 0 // else it would pass for the whole
	}
	return out
}

func (r *Reader) device(d Device, memory bool) record.Device {
	out := r.identity(d)
	if memory {
		out.Total, out.Used, out.Free, out.MemoryKnown = d.Memory.Total, d.Memory.Used, d.Memory.Free, true
	}
	uses, err := r.library.Processes(d)
	out.Listed = err == nil
	for _, u := range uses {
		out.Processes = append(out.Processes, snapshot.GPUProcess{PID: u.PID, Name: u.Name, Bytes: u.Bytes, Known: u.Known})
	}
	return out
}

// number tells the ordinals of a process.
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

// resolve works out which GPUs the ordinals that a process uses are. listed
// are the devices on which NVML lists it, by UUID.
func (r *Reader) resolve(s record.Subject, listed []string) {
	known := r.ordinals[s.Process]
	if known == nil {
		known = map[int32]Device{}
		r.ordinals[s.Process] = known
	}
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
		return // gone: what is known stays
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
