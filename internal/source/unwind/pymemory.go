package unwind

import (
	"errors"

	"golang.org/x/sys/unix"
)

// A span is a piece of a process's memory: len(to) bytes, 1 and more, from the
// address at. ok says that all of them were read.
type span struct {
	at uint64
	to []byte
	ok bool
}

// A memory reads pieces of a process's memory, in order.
type memory interface{ read(spans []*span) }

// processMemory is the memory of the process of this PID.
type processMemory uint32

// maxSpans is how many pieces one system call reads. The kernel takes up to 1,024.
const maxSpans = 512

func (pid processMemory) read(spans []*span) {
	local := make([]unix.Iovec, 0, min(len(spans), maxSpans))
	remote := make([]unix.RemoteIovec, 0, cap(local))
	for len(spans) > 0 {
		local, remote = local[:0], remote[:0]
		batch := spans[:min(len(spans), maxSpans)]
		for _, s := range batch {
			v := unix.Iovec{Base: &s.to[0]}
			v.SetLen(len(s.to))
			local = append(local, v)
			remote = append(remote, unix.RemoteIovec{Base: uintptr(s.at), Len: len(s.to)})
		}
		n, err := unix.ProcessVMReadv(int(pid), local, remote, 0)
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EPERM) {
			return
		}
		done := 0
		for err == nil && done < len(batch) && n >= len(batch[done].to) {
			n -= len(batch[done].to)
			batch[done].ok = true
			done++
		}
		// It stops at a piece that cannot be read: go on with the next.
		spans = spans[min(done+1, len(batch)):]
	}
}

// pieces are what one step reads of memory.
type pieces []*span

// want returns a piece that is there once it was read.
func (p *pieces) want(at uint64, n int) *span {
	s := &span{at: at, to: make([]byte, n)}
	*p = append(*p, s)
	return s
}

// Of an object whose size is not known yet, usualObject bytes are read, and none beyond its page.
const usualObject, page = 256, 4096

// begin wants so many bytes of an object, and more that are there if these are.
func (p *pieces) begin(at uint64, n int) *span {
	return p.want(at, max(n, int(min(usualObject, page-at%page))))
}

// complete returns s if it has n bytes, and else wants them.
func (p *pieces) complete(s *span, n int) *span {
	if len(s.to) >= n {
		return s
	}
	return p.want(s.at, n)
}

// read reads what is wanted.
func (p *pieces) read(m memory) {
	m.read(*p)
	*p = (*p)[:0]
}
