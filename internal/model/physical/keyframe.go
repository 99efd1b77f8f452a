package physical

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Visit writes the Ledger to a keyframe, or reads it from one into a new Ledger, which then
// shows the same figures, and which further events change as they would here.
func (l *Ledger) Visit(f *record.Fields) {
	l.Rows.Visit(f)
	f.Uint(&l.order, &l.rows)
	k := &keyframe{Fields: f, l: l, number: map[*memory]uint64{}}
	all := make([]*process, 0, len(l.procs))
	for _, p := range l.procs {
		all = append(all, p)
	}
	record.List(f, &all, 8, maxProcesses, func(at **process) {
		var id event.Process
		if !f.Reading() {
			id = (*at).id
		}
		f.Process(&id)
		if f.Reading() {
			f.Require(l.procs[id] == nil)
			*at = l.process(id)
		}
		if !f.Failed() {
			k.process(*at)
		}
	})
	k.rings()
	for _, p := range all {
		if !f.Failed() {
			k.threads(p)
		}
	}
	f.Loss(l.loss)
}

// A keyframe is a call of Visit in progress.
type keyframe struct {
	*record.Fields
	l        *Ledger
	memories []*memory
	number   map[*memory]uint64 // index into memories
}

// process visits a process and its objects.
func (k *keyframe) process(p *process) {
	k.Bool(&p.seen, &p.exited, &p.suspended)
	k.Uint(&p.exec, &p.changed)
	record.List(k.Fields, &p.gpus, 6, maxGPUs, func(g *GPU) {
		record.Unsigned(k.Fields, &g.ID)
		k.Bool(&g.Known)
		record.Signed(k.Fields, &g.Instance, &g.Ordinal)
		k.Uint(&g.opened)
		record.Signed(k.Fields, &g.bytes)
	})
	record.Map(k.Fields, p.instances, 2, maxInstances, func(instance *uint64, gpu *uint32) {
		k.Uint(instance)
		record.Unsigned(k.Fields, gpu)
	})
	record.Map(k.Fields, p.buried, 2, maxBuried, func(name, at *uint64) { k.Uint(name, at) })
	record.Map(k.Fields, p.parked, 7, maxParked, func(name *uint32, x *parked) {
		record.Unsigned(k.Fields, name)
		k.Uint(&x.size, &x.backs.addr)
		record.UpTo(k.Fields, &x.backs.space, uint64(event.NumSpaces)-1)
		k.rows(p, &x.rows)
	})
	var all []*object
	number := map[*object]int{&p.root: 0}
	for o := p.root.after(&p.root); o != nil; o = o.after(&p.root) {
		all = append(all, o)
		number[o] = len(all)
	}
	i := 0
	record.List(k.Fields, &all, 9, MaxObjects, func(at **object) {
		parent := 0
		if !k.Reading() {
			parent = number[(*at).parent]
		} else {
			*at = &object{objectID: objectID{proc: p.id}}
		}
		record.UpTo(k.Fields, &parent, uint64(i))
		i++
		under := &p.root
		if parent > 0 {
			under = all[parent-1]
		}
		k.object(p, *at, under)
	})
}

// object visits an object, which is below another one. One that is read comes into the tables.
func (k *keyframe) object(p *process, o, under *object) {
	isDevice, isMemory := o.device == o, o.memory != nil
	record.Unsigned(k.Fields, &o.op)
	k.Uint(&o.name, &o.time, &o.number, &o.order)
	record.Signed(k.Fields, &o.gpu)
	k.Bool(&isDevice, &isMemory)
	k.Require(o.gpu >= none && int(o.gpu) < len(p.gpus))
	if isMemory {
		k.memory(p, o)
	}
	if !k.Reading() || k.Failed() {
		return
	}
	if o.device = under.device; isDevice {
		o.device = o
	}
	o.append(under)
	l := k.l
	switch o.op {
	case opDescriptor:
		k.Require(!isMemory && under == &p.root && p.descriptors[o.number] == nil)
		p.descriptors[o.number] = o
		return
	case opExport:
		k.Require(isMemory && under == &p.root && l.exports[o.number] == nil)
		l.exports[o.number] = o
	default:
		top := under == &p.root || under.op == opDescriptor
		k.Require(top == (o.name == clientOf(o.name)) && l.objects[o.objectID] == nil)
		k.Require(o.op != event.OpNone || top || under.name == clientOf(under.name)) // none that was not seen is deep below
		if l.objects[o.objectID] = o; o.name == clientOf(o.name) {
			l.claim(o.name, p.id)
		}
	}
	k.Require(l.ObjectCount() < l.max)
	l.count(p.id, 1)
}

// memory visits an object's part in memory.
func (k *keyframe) memory(p *process, o *object) {
	m := record.Make(k.Fields, &o.memory)
	m.object = o
	k.number[m] = uint64(len(k.memories))
	k.memories = append(k.memories, m)
	k.Bool(&m.owner)
	k.Uint(&m.size, &m.backs.Addr, &m.backs.Block)
	record.UpTo(k.Fields, &m.backs.Space, uint64(event.NumSpaces)-1)
	k.rows(p, &m.rows)
	if k.Reading() && m.backs != (ledger.Backed{}) {
		p.backing[address{m.backs.Space, m.backs.Addr}] = m
	}
}

// rows visits the parts of memory by call site, of which there is one at least.
func (k *keyframe) rows(p *process, rows *[]row) {
	record.List(k.Fields, rows, 7, maxRows, func(r *row) {
		k.Uint(&r.size, &r.stack, &r.addr, &r.time)
		record.UpTo(k.Fields, &r.kind, uint64(event.NumKinds)-1)
		record.Unsigned(k.Fields, &r.outer)
		record.Signed(k.Fields, &r.device)
		k.Require(r.device >= none && int(r.device) < len(p.gpus))
	})
	k.Require(len(*rows) > 0)
}

// rings visits who shares memory with whom: which one follows in each ring.
func (k *keyframe) rings() {
	for _, m := range k.memories {
		k.Next()
		next := k.number[m.next]
		record.Index(k.Fields, &next, len(k.memories))
		if !k.Reading() || k.Failed() {
			continue
		}
		m.next = k.memories[next]
		k.Require(m.next.prev == nil)
		m.next.prev = m
	}
}

// threads visits what is known of a process's threads.
func (k *keyframe) threads(p *process) {
	latest := map[uint32]uint64{}
	for id, m := range p.latest {
		if i, there := k.number[m]; there {
			latest[id] = i
		}
	}
	record.Map(k.Fields, latest, 2, maxThreads, func(id *uint32, i *uint64) {
		record.Unsigned(k.Fields, id)
		record.Index(k.Fields, i, len(k.memories))
		if k.Reading() && !k.Failed() {
			p.latest[*id] = k.memories[*i]
		}
	})
	record.Map(k.Fields, p.freed, 7, maxThreads, func(id *uint32, x *freed) {
		record.Unsigned(k.Fields, id)
		k.Uint(&x.name, &x.parent, &x.size, &x.time)
		record.Unsigned(k.Fields, &x.outer)
		seen := x.rows != nil
		if k.Bool(&seen); seen {
			k.rows(p, &x.rows)
		}
	})
	record.Map(k.Fields, p.endings, 5, maxThreads, func(id *uint32, x **ending) {
		g := record.Make(k.Fields, x)
		record.Unsigned(k.Fields, id)
		k.Uint(&g.first, &g.last)
		record.Signed(k.Fields, &g.Freed)
		record.List(k.Fields, &g.Gone, 3, maxGone, func(b *ledger.Backed) {
			record.UpTo(k.Fields, &b.Space, uint64(event.NumSpaces)-1)
			k.Uint(&b.Addr, &b.Block)
		})
	})
}
