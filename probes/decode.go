package probes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A Stack is a call stack. It comes before the first event that names it. The return program defines
// Words, Flags and Frames. With this package's own program, Words are Frames return addresses, innermost
// first.
type Stack struct {
	ID      uint64
	Process event.Process
	Flags   uint32
	Frames  uint32
	Words   []uint64 // valid until the handler returns
}

// A Handler receives events and stacks in the order of the ring buffer, in one goroutine.
type Handler interface {
	Event(*event.Event)
	Stack(*Stack)
}

// Record types and layout of bpf/records.h.
const (
	recordCall = iota + 1
	recordStack
	recordFork
	recordExec
	recordExit

	eventShed = 1 // GM_EVENT_SHED

	eventBytes       = 120
	stackHeaderBytes = 32
	maxWords         = 3072
	values           = 8
)

var errRecord = errors.New("malformed record")

// procAddress is an answer of cuGetProcAddress to a program.
type procAddress struct {
	process event.Process
	name    string
	address uint64
}

// A decoder turns records into events. It reuses its buffers.
type decoder struct {
	user uint16 // place of the record's user
	shed bool   // the record has no stack, because user space asked for none

	event  event.Event
	stack  Stack
	values [values]uint64
	words  [maxWords]uint64
	// onProcAddress, if set, receives every successful call of cuGetProcAddress.
	onProcAddress func(procAddress)
}

// decode passes one record of the ring buffer on to h. It never panics, whatever the record holds.
func (d *decoder) decode(raw []byte, h Handler) error {
	if d.user, d.shed = noPlace, false; len(raw) < stackHeaderBytes {
		return fmt.Errorf("decode %d bytes: %w", len(raw), errRecord)
	}
	le := binary.LittleEndian
	d.user = le.Uint16(raw[2:])
	switch kind := raw[0]; kind {
	case recordStack:
		n := (len(raw) - stackHeaderBytes) / 8
		if n > maxWords || len(raw)%8 != 0 {
			return fmt.Errorf("decode a stack of %d bytes: %w", len(raw), errRecord)
		}
		for i := range n {
			d.words[i] = le.Uint64(raw[stackHeaderBytes+8*i:])
		}
		d.stack = Stack{
			ID:      le.Uint64(raw[8:]),
			Process: process(le.Uint32(raw[24:]), le.Uint64(raw[16:])),
			Flags:   le.Uint32(raw[28:]),
			Frames:  le.Uint32(raw[4:]),
			Words:   d.words[:n],
		}
		h.Stack(&d.stack)
		return nil
	case recordCall, recordFork, recordExec, recordExit:
		if len(raw) < eventBytes {
			return fmt.Errorf("decode an event of %d bytes: %w", len(raw), errRecord)
		}
		d.shed = raw[1]&eventShed != 0
		return d.decodeEvent(kind, raw, h)
	default:
		return fmt.Errorf("decode type %d: %w", kind, errRecord)
	}
}

func (d *decoder) decodeEvent(kind byte, raw []byte, h Handler) error {
	le := binary.LittleEndian
	e := &d.event
	*e = event.Event{
		API:    le.Uint16(raw[4:]),
		Outer:  le.Uint16(raw[6:]),
		Time:   le.Uint64(raw[8:]),
		Proc:   process(le.Uint32(raw[24:]), le.Uint64(raw[16:])),
		TID:    le.Uint32(raw[28:]),
		Result: int32(le.Uint32(raw[32:])),
		Device: int32(le.Uint32(raw[36:])),
		Ctx:    le.Uint64(raw[40:]),
		Stack:  le.Uint64(raw[48:]),
		Tenant: d.user,
	}
	const at = eventBytes - values*8
	v := &d.values
	for i := range v {
		v[i] = le.Uint64(raw[at+8*i:])
	}
	if (kind == recordCall) != (e.API != 0) || int(e.API) >= len(Entries) || int(e.Outer) >= len(Entries) {
		return fmt.Errorf("decode row %d in %d: %w", e.API, e.Outer, errRecord)
	}
	name := ""
	if kind != recordCall {
		text, _, _ := bytes.Cut(raw[at+16:at+32], []byte{0})
		name = string(text)
	}
	switch kind {
	case recordFork:
		e.Op, e.Child, e.Name = event.OpFork, process(uint32(v[0]), v[1]), name
	case recordExec:
		e.Op, e.Name = event.OpExec, name
	case recordExit:
		e.Op, e.Name = event.OpExit, name
	default:
		Entries[e.API].plan.fill(e, v)
		if e.Op == opProcAddress {
			if d.onProcAddress != nil && e.Result == event.Success {
				name, _, _ := bytes.Cut(raw[at:at+32], []byte{0})
				d.onProcAddress(procAddress{e.Proc, string(name), e.Addr})
			}
			return nil
		}
	}
	h.Event(e)
	return nil
}

// process returns the process with a PID that started so many nanoseconds after boot.
func process(pid uint32, start uint64) event.Process {
	return event.Process{PID: pid, Start: start}
}
