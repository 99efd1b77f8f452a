package physical

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// A process gives memory to others in a file (cuMemExportToShareableHandle): the kernel driver keeps
// an object of its own there, which shares the memory, and each import shares it with that. Memory
// that only a file has is charged to no process.
//
// When the last descriptor of a file is closed is not seen. Programs close theirs once they have
// imported, so that an importer counts as the owner before a file does. A process's exports end here
// with the process.

// export puts memory into a place of a file.
func (l *Ledger) export(p *process, e *event.Event) {
	l.countRest(e)
	if old := l.exports[e.Handle]; old != nil {
		if old.time > e.Time {
			return
		}
		l.free(e.Time, false, old)
	}
	s := l.source(e)
	if s == nil || e.Handle == 0 {
		return
	}
	if e.Shut || l.held >= l.max {
		l.loss.Add(lossObjects, 1)
		return
	}
	l.order++
	o := &object{objectID: objectID{proc: e.Proc}, op: opExport, number: e.Handle, time: e.Time, order: l.order, gpu: none}
	o.append(&p.root)
	l.exports[e.Handle] = o
	l.count(e.Proc, 1)
	m := newMemory(row{size: s.size, kind: s.rows[0].kind, device: none})
	m.object, o.memory = o, m
	m.join(s)
}

// opExport is the op of an export's node, which has no name.
const opExport = event.OpObjectExport

// countRest counts the objects beyond the first that one export or import names.
func (l *Ledger) countRest(e *event.Event) {
	if e.Size > 1 {
		l.loss.Add(lossShared, e.Size-1)
	}
}

// join puts m into a ring, after s.
func (m *memory) join(s *memory) {
	m.next, m.prev = s.next, s
	m.next.prev, s.next = m, m
}

// maxFiles bounds how many files of a ring are looked at for one event.
const maxFiles = 1 << 10

// heir returns who of m's ring owns the memory after m: the next that has not ended with it, a
// file only when no process is left. It is nil for nobody.
func (m *memory) heir() (file *memory) {
	files := 0
	for next := m.next; next != m && files < maxFiles; next = next.next {
		switch {
		case next.object.ended:
		case next.object.op != opExport:
			return next
		default:
			file = next
			files++
		}
	}
	return file
}

// fileOwner returns the file that owns the memory of m, a file, nil if a process does.
func (m *memory) fileOwner() *memory {
	x := m
	for range maxFiles {
		switch {
		case x.object.op != opExport:
			return nil
		case x.owner:
			return x
		}
		x = x.prev
	}
	return nil
}
