package recordtest

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// The entries of a recording of version 4, for a Forger.
const (
	EntryTrace    = 1
	EntryPlace    = 2
	EntryStack    = 3
	EntryName     = 4
	EntryProcess  = 5
	EntryReading  = 6
	EntryLoss     = 7
	EntryNote     = 8
	EntryMoment   = 9
	EntrySweep    = 10
	EntryReported = 11
	EntryCut      = 12
	EntrySteps    = 13
	EntryTensors  = 14
	EntryHeap     = 15
	entryEvent    = 16
)

const (
	forgedBlock  = 256 << 10 // bytes of a payload at most
	forgedHeader = 56
	// olderTensors is the event.Space of the tensor layer in version 4.
	olderTensors = 4
)

// A Forger makes recordings that no Writer would write: every checksum is right, and
// every number is the forger's choice. They have version 4, which no reader takes any more:
// package record refuses such a file at its header, so nothing that is in it is tested.
type Forger struct {
	limit   int // bytes of the file
	file    []byte
	payload []byte
	records uint32
	blocks  uint64

	texts   map[string]uint64
	shapes  map[forgedShape]uint64
	callers map[forgedCaller]uint64
	stacks  map[uint64]uint64
	last    map[byte]uint64 // of each sort of word
	time    uint64
	place   uint64
	stack   uint64
	address uint64
}

type forgedShape struct {
	op, kind, space byte
	api             uint16
	result, device  int32
	fields          uint64
}

type forgedCaller struct {
	proc event.Process
	tid  uint32
	ctx  uint64
}

// Forge returns a Forger of a file of at most limit bytes.
func Forge(limit int) *Forger {
	header := make([]byte, 32)
	copy(header, "\x89gpumtr\n")
	binary.LittleEndian.PutUint32(header[8:], 4)
	binary.LittleEndian.PutUint32(header[28:], crc32.Checksum(header[:28], crc32.MakeTable(crc32.Castagnoli)))
	f := &Forger{limit: limit, file: header}
	f.begin()
	return f
}

func (f *Forger) begin() {
	f.payload, f.records = f.payload[:0], 0
	f.texts, f.shapes, f.callers, f.stacks = map[string]uint64{"": 0}, map[forgedShape]uint64{}, map[forgedCaller]uint64{}, map[uint64]uint64{}
	f.last = map[byte]uint64{}
	f.time, f.place, f.stack, f.address = 0, 0, 0, 0
}

// Block ends the block.
func (f *Forger) Block() {
	if len(f.payload) == 0 {
		return
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	b := make([]byte, forgedHeader)
	copy(b, "\xf5gmb")
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(f.payload, castagnoli))
	binary.LittleEndian.PutUint32(b[12:], uint32(len(f.payload)))
	binary.LittleEndian.PutUint64(b[16:], f.blocks)
	binary.LittleEndian.PutUint32(b[40:], f.records)
	binary.LittleEndian.PutUint32(b[4:], crc32.Update(0, castagnoli, b[8:]))
	f.file = append(append(f.file, b...), f.payload...)
	f.blocks++
	f.begin()
}

// Room tells whether n more bytes fit the file, and has them begin a new block where the
// current one is too full, or has as many callers and stacks as a reader takes.
func (f *Forger) Room(n int) bool {
	if len(f.payload)+n > forgedBlock || len(f.callers) >= 1<<12 || len(f.stacks) >= 1<<14 {
		f.Block()
	}
	return len(f.file)+forgedHeader+len(f.payload)+n <= f.limit
}

// Bytes ends the file, which says that it was closed.
func (f *Forger) Bytes() []byte {
	f.Block()
	return f.file
}

// Entry begins a record.
func (f *Forger) Entry(kind uint64) *Forger {
	if kind != EntryPlace {
		f.records++
	}
	return f.Uint(kind)
}

// Uint appends unsigned numbers.
func (f *Forger) Uint(list ...uint64) *Forger {
	for _, v := range list {
		f.payload = binary.AppendUvarint(f.payload, v)
	}
	return f
}

// Int appends a signed number.
func (f *Forger) Int(v int64) *Forger {
	f.payload = binary.AppendVarint(f.payload, v)
	return f
}

// Bool appends a truth value.
func (f *Forger) Bool(v bool) *Forger {
	if v {
		return f.Uint(1)
	}
	return f.Uint(0)
}

// Text appends texts: each in full the first time, later by its number.
func (f *Forger) Text(list ...string) *Forger {
	for _, s := range list {
		i, known := f.texts[s]
		if !known {
			i = uint64(len(f.texts))
			f.texts[s] = i
		}
		if f.Uint(i); !known {
			f.Uint(uint64(len(s)))
			f.payload = append(f.payload, s...)
		}
	}
	return f
}

// Trace begins a trace at second 10, of every process, with incidents and functions.
func (f *Forger) Trace(incidents int, apis ...string) *Forger {
	f.Entry(EntryTrace).Text("1", "command", "every process", "complete", "595").Int(10).Uint(0).Int(0).Uint(0)
	f.Bool(true).Bool(true).Bool(true).Bool(true).Int(0).Int(int64(incidents)).Uint(uint64(len(apis)))
	return f.Text(apis...)
}

// Moment tells a time.
func (f *Forger) Moment(at uint64) *Forger {
	f.Entry(EntryMoment).Int(int64(at - f.time))
	f.time = at
	return f.Uint(0).Bool(true)
}

// Process appends a process without a program's file or a user.
func (f *Forger) Process(p event.Process, name string) *Forger {
	return f.Entry(EntryProcess).Uint(uint64(p.PID), p.Start).Bool(true).Text(name).Bool(true).Uint(0, 0)
}

// Place defines a place: with a location, which the caller appends, or without one.
func (f *Forger) Place(id uint64, named bool) *Forger {
	f.Entry(EntryPlace).Int(int64(id - f.place)).Int(0)
	f.place = id
	if named {
		return f.Uint(2)
	}
	return f.Uint(0)
}

// Stack tells a stack whose frames are n times the places.
func (f *Forger) Stack(id uint64, p event.Process, n int, places ...uint64) *Forger {
	f.Entry(EntryStack).Int(int64(id-f.stack)).Uint(uint64(p.PID), p.Start, uint64(n*len(places)))
	f.stack = id
	for range n {
		for _, id := range places {
			f.Int(int64(id - f.place))
			f.place = id
		}
	}
	return f
}

// Event tells an event.
func (f *Forger) Event(e event.Event) *Forger {
	var fields uint64
	set := func(bit uint64, on bool) {
		if on {
			fields |= bit
		}
	}
	set(1, e.Stack != 0)
	set(2, e.Child != event.Process{})
	set(4, e.Name != "")
	words := []struct {
		bit   uint64
		sort  byte
		value uint64
	}{{32, 'a', e.Addr}, {128, 'h', e.Handle}, {512, 'p', e.Part}, {2048, 's', e.Stream}}
	if e.Op.Kernel() {
		words[1].sort = 'o'
	}
	set(8<<1, e.Size != 0) // wordFine
	for _, w := range words {
		set(w.bit<<1, w.value != 0)
	}
	s := forgedShape{byte(e.Op), byte(e.Kind), byte(e.Space), e.API, e.Result, e.Device, fields}
	number, known := f.shapes[s]
	if !known {
		number = uint64(len(f.shapes))
		f.shapes[s] = number
	}
	if f.Entry(entryEvent + number); !known {
		f.Uint(uint64(s.op), uint64(s.kind), uint64(s.space), uint64(s.api), 0).Int(int64(s.result)).Int(int64(s.device)).Uint(fields)
	}
	f.Int(int64(e.Time - f.time))
	f.time = e.Time
	c := forgedCaller{e.Proc, e.TID, e.Ctx}
	i, known := f.callers[c]
	if !known {
		i = uint64(len(f.callers))
		f.callers[c] = i
	}
	if f.Uint(i); !known {
		f.Uint(uint64(c.proc.PID), c.proc.Start, uint64(c.tid), c.ctx)
	}
	if e.Stack != 0 {
		i, known := f.stacks[e.Stack]
		if !known {
			i = uint64(len(f.stacks))
			f.stacks[e.Stack] = i
		}
		if f.Uint(i); !known {
			f.Uint(e.Stack)
		}
	}
	if fields&2 != 0 {
		f.Uint(uint64(e.Child.PID), e.Child.Start)
	}
	if fields&4 != 0 {
		f.Text(e.Name)
	}
	if e.Size != 0 {
		f.Uint(e.Size)
	}
	for _, w := range words {
		if w.value != 0 {
			f.Int(int64(w.value - f.last[w.sort]))
			f.last[w.sort] = w.value
		}
	}
	return f
}
