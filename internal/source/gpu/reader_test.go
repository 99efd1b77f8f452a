package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// A fakeDriver says what a test wants it to say.
type fakeDriver struct {
	devices []Device
	uses    map[string][]ProcessUse // by UUID
	err     error
	reading func() // called when processes are read, if set
	used    int    // times that Use was asked
	closed  atomic.Bool
}

func (f *fakeDriver) Devices() ([]Device, error) { return f.devices, f.err }
func (f *fakeDriver) Close() error {
	f.closed.Store(true)
	return nil
}
func (f *fakeDriver) Processes(d Device) ([]ProcessUse, error) {
	if f.reading != nil {
		f.reading()
	}
	return f.uses[d.UUID], f.err
}
func (f *fakeDriver) Use(d Device, pid int) (ProcessUse, error) {
	f.used++
	for _, u := range f.uses[d.UUID] {
		if u.PID == pid {
			return u, f.err
		}
	}
	return ProcessUse{PID: pid}, f.err
}

func oneGPU() *fakeDriver {
	return &fakeDriver{devices: []Device{{Index: 0, UUID: "GPU-a", Name: "Fake", Memory: Memory{Total: 1000, Used: 700, Free: 300, Known: true}}}}
}

// reader returns one that tells what it reads on a channel.
func reader(t *testing.T, d Library, subjects ...record.Subject) (*Reader, chan *record.Reading) {
	t.Helper()
	told := make(chan *record.Reading, 1000)
	r, err := NewReader(d, func() []record.Subject { return subjects }, func(r *record.Reading) { told <- r }, func() uint64 { return 17 })
	if err != nil {
		t.Fatal(err)
	}
	return r, told
}

// A driver that hangs keeps nobody waiting for long, and it is told.
func TestDriverThatHangs(t *testing.T) {
	hang := make(chan struct{})
	d := oneGPU()
	d.reading = func() { <-hang }
	r, _ := reader(t, d)
	go r.Run()
	r.Ask()
	r.Ask()
	if lost := r.Loss()[lossLate].Value; lost != 2 || !strings.Contains(strings.Join(r.Notes(), ""), "has not answered") {
		t.Errorf("loss %d, notes %q", lost, r.Notes())
	}
	if r.Close(); d.closed.Load() {
		t.Error("it is closed while it is read")
	}
	close(hang)
	<-r.done
	r.Ask() // after its end: nothing to wait for
}

// A GPU that shares the machine's memory: the driver supports neither the figures of its memory nor,
// on some machines, the list of its processes. No figure is made up, and a note says what is missing.
func TestNotSupported(t *testing.T) {
	for _, c := range []struct {
		err  error
		want []string
	}{
		{nil, []string{"how much memory there is, or is in use, on GPU 0"}},
		{fmt.Errorf("list: %w", ErrUnsupported), []string{"how much memory there is, or is in use, on GPU 0", "which processes use GPU 0"}},
	} {
		d := &fakeDriver{devices: []Device{{Index: 0, UUID: "GPU-a", Name: "Integrated"}}}
		r, told := reader(t, d)
		d.err = c.err
		r.Memory = true
		go r.Run()
		r.Ask()
		if got := (<-told).Devices[0]; got.MemoryKnown || got.Total != 0 || got.Listed != (c.err == nil) {
			t.Errorf("%v: %+v", c.err, got)
		}
		notes := r.Notes()
		if len(notes) != len(c.want) {
			t.Errorf("%v: notes %q, want %q", c.err, notes, c.want)
		}
		for i := range min(len(notes), len(c.want)) {
			if !strings.Contains(notes[i], c.want[i]) {
				t.Errorf("%v: note %q, want %q", c.err, notes[i], c.want[i])
			}
		}
		r.Close()
	}
}

// Readings are asked for at once and otherwise kept apart, however often they
// are wanted.
func TestReadingsAreKeptApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := oneGPU()
		r, told := reader(t, d)
		go r.Run()
		for end := time.Now().Add(5 * readingPause); time.Now().Before(end); time.Sleep(time.Millisecond) {
			r.Soon(false)
		}
		if got := len(told); got < 1 || got > 10 {
			t.Errorf("%d readings in %v", got, 5*readingPause)
		}
		before := len(told)
		began := time.Now()
		for range 20 {
			r.Ask()
		}
		if len(told) < before+20 || time.Since(began) > time.Second {
			t.Errorf("%d readings for 20 asks, %v", len(told)-before, time.Since(began))
		}
		if r.Close(); !d.closed.Load() || r.Loss()[lossLate].Value != 0 {
			t.Errorf("did not end, or lost %v", r.Loss())
		}
	})
}

// A reading says who is where, and how much that is.
func TestReading(t *testing.T) {
	const pid = 1 << 30 // no process: what it opened cannot be looked at
	id := event.Process{PID: pid, Start: event.StartUnit}
	d := oneGPU()
	d.uses = map[string][]ProcessUse{"GPU-a": {{PID: pid, Name: "prog", Bytes: 700, Known: true}}}
	r, _ := reader(t, d, record.Subject{Process: id, Ordinals: []int32{0}})
	got := r.read(false)
	if got.Time != 17 || len(got.Devices) != 1 || got.Devices[0].MemoryKnown || got.Devices[0].Total != 1000 || got.Devices[0].Label != "0" || !got.Devices[0].Listed ||
		len(got.Devices[0].Processes) != 1 || got.Devices[0].Processes[0].Name != "prog" {
		t.Errorf("%+v", got)
	}
	if want := []record.Use{{Process: id, Bytes: 700, Known: true}}; !slices.Equal(got.Uses, want) {
		t.Errorf("uses %+v, want %+v", got.Uses, want)
	}
	if want := []record.Ordinal{{Process: id, Ordinal: event.NoDevice}}; !slices.Equal(got.Ordinals, want) {
		t.Errorf("ordinals %+v, want %+v", got.Ordinals, want)
	}
	if m := r.read(true).Devices[0]; !m.MemoryKnown || m.Total != 1000 || m.Used != 700 || m.Free != 300 {
		t.Errorf("memory %+v", m)
	}

	d.err = errors.New("lost")
	if got := r.read(true); got.Devices[0].Listed || got.Devices[0].MemoryKnown || len(got.Uses) != 0 {
		t.Errorf("of a driver that fails: %+v", got)
	}
	if _, err := NewReader(d, nil, nil, nil); !errors.Is(err, d.err) {
		t.Errorf("a driver that fails is used: %v", err)
	}
	r.subjects = func() []record.Subject { return nil }
	if r.read(false); len(r.ordinals) != 0 {
		t.Error("a process that ended is remembered")
	}
}

// A reading is made because somebody wants one, and for no other reason.
func TestNoReadingUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, told := reader(t, oneGPU())
		go r.Run()
		time.Sleep(time.Minute)
		if n := len(told); n != 0 {
			t.Errorf("%d readings in a minute in which nobody asked", n)
		}
		r.Soon(false)
		time.Sleep(time.Minute)
		r.Ask()
		if n := len(told); n != 2 {
			t.Errorf("%d readings for two who wanted one", n)
		}
		r.Close()
	})
}

// A reading says when it began and when it was complete: what the driver says
// is of some moment between.
func TestReadingTakesTime(t *testing.T) {
	clock := uint64(100)
	d := oneGPU()
	d.reading = func() { clock += 50 }
	r, err := NewReader(d, func() []record.Subject { return nil }, func(*record.Reading) {}, func() uint64 { clock++; return clock })
	if err != nil {
		t.Fatal(err)
	}
	if got := r.read(true); got.Begin != 101 || got.Time != 152 {
		t.Errorf("from %d to %d, want 101 to 152", got.Begin, got.Time)
	}
}

// A reading tells how the kernel driver calls each GPU, and each instance of
// one, whoever uses it, and how much memory it has.
func TestReadingNamesDevices(t *testing.T) {
	d := &fakeDriver{devices: migGPUs()}
	d.devices[1].PCI.Domain = 0x10002
	r, _ := reader(t, d)
	want := []record.Device{
		{UUID: u0, Label: "0", Name: "NVIDIA H200", GPU: 0x0a00, GPUKnown: true, Instance: -1, Total: 150754820096, Listed: true},
		{UUID: u1, Label: "1", Name: "NVIDIA H200", GPU: 0x20b00, GPUKnown: true, Instance: -1, Total: 150754820096, Listed: true},
		{UUID: d.devices[0].Instances[0].UUID, Label: "0:0", GPU: 0x0a00, GPUKnown: true, Instance: 7},
		{UUID: d.devices[0].Instances[1].UUID, Label: "0:1", GPU: 0x0a00, GPUKnown: true, Instance: 8},
	}
	if diff := cmp.Diff(want, r.read(false).Devices); diff != "" {
		t.Error(diff)
	}

	// Two that the kernel driver calls the same, and one that is nowhere.
	d.devices[1].PCI = PCI{Domain: 0x10000, Bus: 0x0a, Known: true}
	if got := r.read(false).Devices; got[0].GPUKnown || got[1].GPUKnown || got[2].GPUKnown || got[0].GPU != 0 {
		t.Errorf("two of one name: %+v", got)
	}
	d.devices[0].Instances[0].GPUInstance = -1 // not told
	d.devices[1].PCI = PCI{}
	if got := r.read(false).Devices; !got[0].GPUKnown || got[1].GPUKnown || got[2].GPUKnown || !got[3].GPUKnown {
		t.Errorf("one without a place, and one without a number: %+v", got)
	}
}

// What is read for an incident is asked for by whoever wants it, once.
func TestMemoryIsReadWhenWanted(t *testing.T) {
	r, told := reader(t, oneGPU())
	r.Soon(true)
	go r.Run()
	if m := <-told; !m.Devices[0].MemoryKnown {
		t.Error("without each GPU's memory")
	}
	r.Ask()
	if m := <-told; m.Devices[0].MemoryKnown {
		t.Error("with each GPU's memory, though nobody wants it")
	}
	r.Close()
}

// Where somebody looks at it all the time, each reading has it.
func TestMemoryIsReadAlways(t *testing.T) {
	r, told := reader(t, oneGPU())
	r.Memory = true
	go r.Run()
	for range 2 {
		r.Ask()
		if m := <-told; !m.Devices[0].MemoryKnown {
			t.Error("without each GPU's memory")
		}
	}
	r.Close()
}

// A reading of many processes lists those of each GPU once, and asks for one by itself only
// where the list does not say what it holds.
func TestManyProcessesReadAtOnce(t *testing.T) {
	const processes = 500
	d := oneGPU()
	d.uses = map[string][]ProcessUse{}
	var subjects []record.Subject
	var want []record.Use
	for i := range processes {
		id := event.Process{PID: uint32(100 + i), Start: event.StartUnit}
		use := ProcessUse{PID: int(id.PID), Bytes: int64(i), Known: i != 7}
		d.uses["GPU-a"] = append(d.uses["GPU-a"], use)
		subjects = append(subjects, record.Subject{Process: id})
		want = append(want, record.Use{Process: id, Bytes: use.Bytes, Known: use.Known})
	}
	subjects = append(subjects, record.Subject{Process: event.Process{PID: 99, Start: event.StartUnit}}) // is on none
	lists := 0
	d.reading = func() { lists++ }
	r, _ := reader(t, d, subjects...)
	got := r.read(true)
	if diff := cmp.Diff(want, got.Uses); diff != "" || lists != 1 || d.used != 1 {
		t.Errorf("listed %d times, asked for %d processes by themselves, %s", lists, d.used, diff)
	}
}
