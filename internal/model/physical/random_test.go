package physical

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

var seedFlag = flag.Uint64("seed", 1, "seed of TestRandom; 0 takes one from the clock, as make fuzz does")

// A world is processes that call the kernel driver from several threads at once. A
// call begins, takes effect, returns, and is told, in this order; between these steps
// other threads do theirs. A thread calls again when its call was told, and means an
// object that was told when the call began.
type world struct {
	*rand.Rand
	kernel  kernel
	now     uint64
	threads []*thread
	procs   [4]event.Process
	pids    uint32
	tell    func(*event.Event)
	// below counts the calls under way below each name. Nothing gets the name
	// meanwhile: below which of the two a call was, nobody could tell.
	below map[uint64]int
}

type thread struct {
	id   uint32
	proc int         // index into world.procs
	step func() bool // the next step of its call; it says whether there is one more
}

const (
	worldClients = 5 // of all processes
	worldNames   = 6 // of a client
)

func newWorld(seed uint64, tell func(*event.Event)) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), kernel: kernel{map[uint64]*resource{}}, below: map[uint64]int{}, now: 1000, tell: tell}
	for i := range w.procs {
		w.renew(i)
		for range 3 {
			w.threads = append(w.threads, &thread{id: uint32(100 + len(w.threads)), proc: i})
		}
	}
	return w
}

// renew puts a new process in a slot, sometimes under the PID of the one before.
func (w *world) renew(slot int) {
	if w.procs[slot].PID == 0 || w.IntN(2) == 0 {
		w.pids++
		w.procs[slot].PID = w.pids
	}
	w.now += event.StartUnit
	w.procs[slot].Start = w.now / event.StartUnit * event.StartUnit
	for instance := range uint64(2) {
		w.tell(&event.Event{Op: event.OpGPU, Time: w.now, Proc: w.procs[slot], Addr: instance, Part: instance + 1})
	}
}

func (w *world) idle(slot int) bool {
	return !slices.ContainsFunc(w.threads, func(t *thread) bool { return t.proc == slot && t.step != nil })
}

// advance does one step of one thread.
func (w *world) advance() {
	w.now += 1 + w.Uint64N(50)
	t := w.threads[w.IntN(len(w.threads))]
	if t.step == nil {
		t.step = w.call(t)
	} else if !t.step() {
		t.step = nil
	}
}

// settle lets all calls under way end.
func (w *world) settle() {
	for _, t := range w.threads {
		for t.step != nil {
			w.now++
			if !t.step() {
				t.step = nil
			}
		}
	}
}

// someName is of a client that the process made, as often as not. Only the process
// itself uses it.
func (w *world) someName(p event.Process) uint64 {
	c := uint64(1 + w.IntN(worldClients))
	for range 4 {
		if r := w.kernel.objects[c<<32|c]; r != nil && r.proc == p {
			break
		}
		c = uint64(1 + w.IntN(worldClients))
	}
	if w.IntN(8) == 0 {
		return c<<32 | c
	}
	return c<<32 | uint64(0x100+w.IntN(worldNames))
}

// meant tells later on whether what has a name is there as it was.
func (w *world) meant(name uint64) func() bool {
	r := w.kernel.objects[name]
	known := r != nil && r.told
	return func() bool { return known && w.kernel.objects[name] == r }
}

// owned returns whether a name is one of a client that p made.
func (w *world) owned(name uint64, p event.Process) bool {
	r := w.kernel.objects[clientOf(name)]
	return r != nil && r.proc == p
}

// call begins a call, and returns its further steps.
func (w *world) call(t *thread) func() bool {
	p := w.procs[t.proc]
	e := &event.Event{Proc: p, TID: t.id, Outer: uint16(w.IntN(len(functions))), Stack: w.Uint64N(9), Time: w.now, Device: event.NoDevice}
	var apply func() bool // in the kernel: whether it succeeded
	ends := false
	e.Handle, e.Part = w.someName(p), w.someName(p)
	r := &resource{name: e.Handle, parent: e.Part}
	parent, meant := w.meant(e.Part), w.meant(e.Handle)
	add := func() bool {
		if !parent() || w.below[r.name] > 0 || !w.owned(r.name, p) || !w.kernel.under(r.name, r.parent) {
			return false
		}
		w.kernel.objects[r.name] = r
		return true
	}
	switch k := w.IntN(100); {
	case k < 8:
		c := uint64(1 + w.IntN(worldClients))
		e.Op, e.Handle, e.Part, e.Addr = event.OpClient, c<<32|c, 0, w.Uint64N(3)
		if w.kernel.objects[e.Handle] != nil {
			e.Result = 0x57
		} else { // at once: nobody closes a descriptor that is being used
			w.kernel.objects[e.Handle] = &resource{name: e.Handle, proc: p, descriptor: e.Addr, told: true}
		}
		w.tell(e)
		return nil
	case k < 20:
		e.Op, e.Part, e.Addr = event.OpObjectDevice, clientOf(e.Handle), w.Uint64N(2)
		parent, r.parent, r.gpu = w.meant(e.Part), e.Part, uint32(e.Addr)+1
		apply = add
	case k < 28:
		e.Op = event.OpObject
		apply = add
	case k < 62:
		e.Op, e.Kind, e.Size = event.OpObjectMemory, event.KindDriver, 1+w.Uint64N(1<<20)
		r.memory, r.owner, r.size = true, true, e.Size
		apply = add
	case k < 74:
		return w.share(e, r, add)
	case k < 94:
		e.Op, ends = event.OpObjectFree, true
		apply = func() bool {
			if !meant() || !w.owned(e.Handle, p) {
				return false
			}
			w.kernel.free(e.Handle)
			return true
		}
	case k < 97:
		e.Op, ends, e.Addr = event.OpDescriptorClose, true, w.Uint64N(3)
		// At once: while it is being closed, nobody makes a client on it.
		w.kernel.freeClients(func(r *resource) bool { return r.proc == p && r.descriptor == e.Addr })
		apply = func() bool { return true }
	default:
		return w.life(t, e)
	}
	return w.steps(e, r, apply, ends)
}

// steps are those of a call that has begun and may make r.
func (w *world) steps(e *event.Event, r *resource, apply func() bool, ends bool) func() bool {
	n := 0
	w.below[e.Part]++
	return func() bool {
		switch n++; n {
		case 1:
			if !apply() {
				e.Result = 0x57 // NV_ERR_OBJECT_NOT_FOUND
			}
		case 2:
			if !ends {
				e.Time = w.now
			}
		case 3:
			r.told = true
			w.below[e.Part]--
			w.tell(e)
			return false
		}
		return true
	}
}

// share is a call in which nobody else makes a step: that the one who gives memory
// away keeps it until the other has it is between programs.
func (w *world) share(e *event.Event, r *resource, add func() bool) func() bool {
	w.settle()
	e.Time = w.now // it returns now, after what it shares was made
	sources := []uint64{}
	for name, r := range w.kernel.objects {
		if r.memory {
			sources = append(sources, name)
		}
	}
	if len(sources) == 0 {
		return nil
	}
	slices.Sort(sources)
	e.Op, e.Kind, e.Addr = event.OpObjectShare, event.KindDriver, sources[w.IntN(len(sources))]
	if source := w.kernel.objects[e.Addr]; !add() {
		e.Result = 0x57
	} else {
		w.kernel.dup(r, source)
		r.told = true
	}
	w.tell(e)
	return nil
}

// life is a fork, an exec or an exit.
func (w *world) life(t *thread, e *event.Event) func() bool {
	if !w.idle(t.proc) {
		return nil
	}
	e.Op, e.Handle, e.Part = event.OpFork+event.Op(w.IntN(3)), 0, 0
	e.Child = event.Process{PID: 4000, Start: w.now}
	if e.Op != event.OpFork {
		w.kernel.freeClients(func(r *resource) bool { return r.proc == e.Proc })
	}
	w.tell(e)
	if e.Op == event.OpExit {
		w.renew(t.proc)
	}
	return nil
}

// taken is what a Ledger says of a process, by GPU.
func taken(l *Ledger, p event.Process) map[uint32]int64 {
	out, held := map[uint32]int64{}, l.BytesByGPU(p)
	for i, g := range l.GPUs(p) {
		if held[i] != 0 {
			out[g.ID] += held[i]
		}
	}
	return out
}

// TestRandom: whatever processes call, on how many threads, and in which order it is
// told, each holds on each GPU what the kernel driver counts for it.
func TestRandom(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	compared := 0
	for i := range uint64(60) {
		l := New(ledger.Options{})
		w := newWorld(seed+i, func(e *event.Event) { l.Apply(e, functions[e.Outer]) })
		for step := range 4000 {
			w.advance()
			if step%40 != 0 {
				continue
			}
			w.settle()
			for _, p := range w.procs {
				want := w.kernel.taken(p)
				if d := cmp.Diff(want, taken(l, p)); d != "" {
					t.Fatalf("-seed %d: step %d, process %v (-kernel +ledger):\n%s", seed+i, step, p, d)
				}
				total(l, p)
				compared += len(want)
			}
		}
	}
	if compared < 1000 {
		t.Errorf("only %d figures compared", compared)
	}
}
