package physical

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
)

// An objectID is the name of an object in a process.
type objectID struct {
	proc event.Process
	name uint64 // client << 32 | object
}

// An object is a node of a process's tree: the process, below it the descriptors that
// clients were made on, below each its clients, and so on. An object that calls name but
// that was not seen made is a node too, as long as another one is below it: its end ends
// those.
type object struct {
	objectID
	op     event.Op // of the call that made it; OpNone for one that was not seen
	time   uint64   // of that call, or of the first that named it
	number uint64   // Event.Addr of that call
	order  uint64   // counts objects

	parent, first, last, next, prev *object

	device *object // the device that it is on, which may be itself; nil for none
	gpu    int32   // of a device: index into process.gpus, none while nothing is on it
	ended  bool
	memory *memory // nil for none
}

// opDescriptor is the op of a descriptor's node, which has no name.
const opDescriptor = event.OpDescriptorClose

// append puts o below parent, as the last there.
func (o *object) append(parent *object) {
	o.parent, o.prev = parent, parent.last
	if o.prev == nil {
		parent.first = o
	} else {
		o.prev.next = o
	}
	parent.last = o
}

func (o *object) remove() {
	if o.prev == nil {
		o.parent.first = o.next
	} else {
		o.prev.next = o.next
	}
	if o.next == nil {
		o.parent.last = o.prev
	} else {
		o.next.prev = o.prev
	}
}

// after returns the object that follows o in a walk over all below top, parents
// first, nil at its end.
func (o *object) after(top *object) *object {
	if o.first != nil {
		return o.first
	}
	for ; o != top; o = o.parent {
		if o.next != nil {
			return o.next
		}
	}
	return nil
}

// before returns the topmost objects below o that were seen made, until t.
func (o *object) before(t uint64) (out []*object) {
	for x := o.first; x != nil; x = x.next {
		switch {
		case x.op == event.OpNone || x.op == opDescriptor:
			out = append(out, x.before(t)...)
		case x.time <= t:
			out = append(out, x)
		}
	}
	return out
}

// clientOf returns the name of the client of an object.
func clientOf(name uint64) uint64 { return name>>32<<32 | name>>32 }

// valid returns whether a success of e, which makes an object, could come from a real
// call: a client is its own client, and no other object is.
func valid(e *event.Event) bool {
	return (e.Op == event.OpClient) == (e.Handle == clientOf(e.Handle)) && (e.Op != event.OpObjectMemory || e.Size <= maxBytes)
}

// add puts a new object under its parent, and returns nil if there is no room. An object
// that has its name has ended, even if its end is reported later.
func (l *Ledger) add(p *process, e *event.Event) *object {
	if !valid(e) {
		l.loss.Add(lossInvalid, 1)
		return nil
	}
	id := objectID{e.Proc, e.Handle}
	if old := l.objects[id]; old != nil {
		if old.time > e.Time {
			return nil
		}
		l.free(e.Time, false, old)
	}
	if e.Time < p.buried[e.Handle] {
		return nil
	}
	if client := clientOf(e.Handle); client != e.Handle && (l.over(p, client, e.Time) || l.over(p, e.Part, e.Time)) {
		return nil
	}
	if e.Shut || l.held+3 > l.max { // it, a parent and a client
		l.loss.Add(lossObjects, 1)
		return nil
	}
	parent := l.parent(p, e)
	o := l.insert(id, e.Time, parent)
	o.op, o.number = e.Op, e.Addr
	if e.Op == event.OpClient {
		l.claim(e.Handle, e.Proc)
	}
	return o
}

// insert makes an object that was not seen.
func (l *Ledger) insert(id objectID, at uint64, parent *object) *object {
	l.order++
	o := &object{objectID: id, time: at, order: l.order, device: parent.device, gpu: none}
	o.append(parent)
	l.objects[id] = o
	l.count(id.proc, 1)
	return o
}

// parent returns the object under which e makes one. It is the client if e names one that
// cannot be: another client's object, or memory.
func (l *Ledger) parent(p *process, e *event.Event) *object {
	client := clientOf(e.Handle)
	if e.Op == event.OpClient {
		d := p.descriptors[e.Addr]
		if d == nil {
			d = &object{objectID: objectID{proc: e.Proc}, op: opDescriptor, number: e.Addr, time: e.Time, gpu: none}
			d.append(&p.root)
			p.descriptors[e.Addr] = d
		}
		return d
	}
	c := l.objects[objectID{e.Proc, client}]
	if c == nil {
		c = l.insert(objectID{e.Proc, client}, e.Time, &p.root)
		l.claim(client, e.Proc)
	}
	if clientOf(e.Part) != client || e.Part == client || e.Part == e.Handle {
		return c
	}
	o := l.objects[objectID{e.Proc, e.Part}]
	switch {
	case o == nil: // it may be a device
		o = l.insert(objectID{e.Proc, e.Part}, e.Time, c)
		o.device = o
	case o.memory != nil:
		return c
	}
	return o
}

// free ends objects of one process and all objects under them. With exited, their memory
// stays in Rows, which has seen the process end.
func (l *Ledger) free(at uint64, exited bool, tops ...*object) {
	all := l.scratch[:0]
	for _, top := range tops {
		for o := top; o != nil; o = o.after(top) {
			o.ended = true
			all = append(all, o)
		}
	}
	for i, o := range all {
		if o.op != event.OpNone && o.op != opExport && (o.memory == nil || i == 0) {
			l.procs[o.proc].bury(o.name, at)
		}
		l.forget(o)
	}
	for _, o := range tops {
		parent := o.parent
		o.remove()
		l.prune(parent)
	}
	for _, o := range all {
		if o.memory != nil {
			l.release(o.memory, at, exited)
		}
	}
	clear(all)
	l.scratch = all
	if cap(all) > maxScratch {
		l.scratch = nil
	}
}

// prune ends o and its parents, as long as no object is below them and they were not seen
// made.
func (l *Ledger) prune(o *object) {
	for o.first == nil && o.parent != nil && (o.op == event.OpNone || o.op == opDescriptor) {
		parent := o.parent
		o.ended = true
		l.forget(o)
		o.remove()
		o = parent
	}
}

// maxScratch bounds the scratch memory of free that stays for the next call.
const maxScratch = 1 << 12

// forget removes o from the tables of names.
func (l *Ledger) forget(o *object) {
	switch o.op {
	case opDescriptor:
		delete(l.procs[o.proc].descriptors, o.number)
		return
	case opExport:
		delete(l.exports, o.number)
		l.count(o.proc, -1)
		return
	}
	delete(l.objects, o.objectID)
	l.count(o.proc, -1)
	if claims := l.clients[o.name]; claims != nil {
		delete(claims, o.proc)
		if len(claims) == 0 {
			delete(l.clients, o.name)
		}
	}
}

// claim notes that a process makes calls for a client. The kernel driver gives a number to
// one client at a time, but a process can pass any number to a call.
func (l *Ledger) claim(client uint64, proc event.Process) {
	keyed.Map(l.clients, client)[proc] = true
}

// Owner returns the process whose object e, an OpObjectShare or OpObjectExport, names. It is not known if no
// process was seen to have that client, or if several claim it: all but one of them made
// the number up, or the end of one is reported late.
func (l *Ledger) Owner(e *event.Event) (owner event.Process, known bool) {
	if l.objects[objectID{e.Proc, e.Addr}] != nil {
		return e.Proc, true
	}
	claims := l.clients[clientOf(e.Addr)]
	for id := range claims {
		owner = id
	}
	return owner, len(claims) == 1
}

// maxBuried bounds the ends of objects that are remembered for children that other threads
// made before, and that are reported later.
const maxBuried = 256

// bury remembers when an object ended.
func (p *process) bury(name, at uint64) {
	if len(p.buried) >= maxBuried {
		clear(p.buried)
	}
	p.buried[name] = at
}

// flight is how long, in nanoseconds, a call may take that began before an object's
// end and ended after it.
const flight = 100_000_000

// over returns whether an object that a call made at a time below the named one ended with
// that: the name is not there any more, or a later object has it.
func (l *Ledger) over(p *process, name, at uint64) bool {
	if o := l.objects[objectID{p.id, name}]; o != nil {
		return o.op != event.OpNone && at < o.time
	}
	end, ended := p.buried[name]
	return ended && at < end+flight
}
