package physical

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// Keyframe yields events that, applied in this order to a new Ledger, rebuild what
// is live: the same objects, the same bytes at each call site and on each GPU, and
// further events change them as they would here. What is yielded is valid until
// yield returns. The events have the times of what they rebuild, so that they are
// not in order of time.
//
// It is about memory, not about history. What was ever handed out, calls that failed,
// and loss start afresh; a process that ended is rebuilt as ended and holds nothing, and what
// a checkpoint freed is forgotten.
func (l *Ledger) Keyframe(yield func(*event.Event) bool) {
	k := keyframe{Emitter: ledger.Emitter{Yield: yield}, latest: map[*memory]uint32{}}
	for id, p := range l.procs {
		for thread, m := range p.latest {
			k.latest[m] = thread
		}
		if p.exec != 0 {
			k.Emit(id, event.Event{Op: event.OpExec, Time: p.exec})
		}
		if p.seen {
			// Of a descriptor that nothing was made on: when memory changed last.
			k.Emit(id, event.Event{Op: event.OpDescriptorClose, Time: p.changed, Addr: math.MaxUint64})
		}
		for instance, gpu := range p.instances {
			k.Emit(id, event.Event{Op: event.OpGPU, Time: p.exec + 1, Addr: instance, Part: uint64(gpu)})
		}
		for thread, f := range p.freed { // before a later object has the name
			if f.memory == nil {
				k.Emit(id, event.Event{Op: event.OpObjectFree, Time: f.time, Handle: f.name, TID: thread, Outer: f.outer})
			}
		}
	}
	all := make([]*object, 0, len(l.objects))
	for _, o := range l.objects {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b *object) int { return cmp.Compare(a.order, b.order) })
	for _, o := range all {
		if o.op != event.OpNone && (o.memory == nil || o.memory.owner) {
			k.object(o)
		}
	}
	for _, o := range all {
		if m := o.memory; m != nil && m.owner {
			k.shares(m)
		}
	}
	for id, p := range l.procs {
		k.ordinals(p, all)
		k.freed(l, p)
		if p.exited {
			k.Emit(id, event.Event{Op: event.OpExit, Time: p.changed})
		}
	}
}

// A keyframe is a call of Keyframe in progress.
type keyframe struct {
	ledger.Emitter
	latest map[*memory]uint32 // of threads, which an allocation may follow
}

// object rebuilds o, which is not shared memory of another.
func (k *keyframe) object(o *object) {
	e := event.Event{Op: o.op, Time: o.time, Handle: o.name, Part: o.parent.name, Addr: o.number}
	if o.memory == nil {
		if o.op == event.OpObjectMemory || o.op == event.OpObjectShare || o.op == event.OpObjectImport {
			e.Op, e.Addr = event.OpObject, 0
		}
		k.Emit(o.proc, e)
		return
	}
	e.Addr = 0
	k.memory(o.memory, e, k.latest[o.memory])
}

// memory rebuilds what m holds. What grew grows once more, on a thread of its own.
func (k *keyframe) memory(m *memory, e event.Event, thread uint32) {
	e.Op, e.TID = event.OpObjectMemory, thread
	for i, r := range m.rows {
		e.Kind, e.Stack, e.Outer, e.Size = r.kind, r.stack, r.outer, e.Size+r.size
		if i > 0 {
			k.Emit(m.object.proc, event.Event{Op: event.OpObjectFree, Time: e.Time, Handle: e.Handle, TID: thread, Outer: r.outer})
			e.Kind = event.KindDriver
		}
		k.Emit(m.object.proc, e)
	}
}

// shares rebuilds those who share m, the last of the ring first: each comes directly
// after m.
func (k *keyframe) shares(m *memory) {
	for s := m.prev; s != m; s = s.prev {
		o, r := s.object, s.rows[0]
		if o.op == opExport {
			k.Emit(o.proc, event.Event{Op: event.OpObjectExport, Time: o.time, Handle: o.number, Addr: m.object.name})
			continue
		}
		k.Emit(o.proc, event.Event{
			Op: event.OpObjectShare, Time: o.time, Handle: o.name, Part: o.parent.name, Addr: m.object.name,
			Kind: event.KindDriver, Stack: r.stack, Outer: r.outer,
		})
	}
}

// ordinals emits what p's CUDA calls its devices, also those on which nothing is live.
func (k *keyframe) ordinals(p *process, all []*object) {
	handles := make([]uint64, len(p.gpus)) // of an object on each
	for _, o := range all {
		if d := o.device; o.proc == p.id && d != nil && d.gpu != none {
			handles[d.gpu] = o.name
		}
	}
	for i, h := range handles {
		g := &p.gpus[i]
		if g.Ordinal == event.NoDevice {
			continue
		}
		made := event.Event{Op: event.OpObject, Time: p.exec + 1, Handle: h}
		if h == 0 {
			const client, object = 0xffffffff << 32, 0xfffffffe // nobody's
			switch instance, known := p.instance(g); {
			case !g.Known && g.opened >= maxInstance:
				made.Handle, made.Part = g.opened>>32<<32|object, g.opened
			case known:
				made.Op, made.Handle, made.Part, made.Addr = event.OpObjectDevice, client|object, client|client>>32, instance
			default:
				continue
			}
			k.Emit(p.id, made)
		}
		k.Emit(p.id, event.Event{Op: event.OpGPU, Time: made.Time, Handle: made.Handle, Device: g.Ordinal})
		if h == 0 {
			k.Emit(p.id, event.Event{Op: event.OpObjectFree, Time: made.Time, Handle: made.Handle})
		}
	}
}

// instance returns the device instance that g is, as far as the process was told.
func (p *process) instance(g *GPU) (instance uint64, known bool) {
	for instance, id := range p.instances {
		if g.Known && id == g.ID && g.Instance < 0 {
			return instance, true
		}
	}
	return 0, false
}

// freed rebuilds what was seen made, was freed, and may come back larger.
func (k *keyframe) freed(l *Ledger, p *process) {
	for thread, f := range p.freed {
		if f.memory == nil {
			continue
		}
		o := f.memory.object
		if o.parent.ended || l.objects[o.objectID] != nil {
			continue
		}
		k.memory(f.memory, event.Event{Time: o.time, Handle: o.name, Part: o.parent.name}, thread)
		k.Emit(p.id, event.Event{Op: event.OpObjectFree, Time: f.time, Handle: o.name, TID: thread, Outer: f.outer})
	}
}
