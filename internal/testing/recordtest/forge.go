package recordtest

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// The entries of a recording (package record, types.go), for a Forger.
const (
	entryEvent = iota
	EntryPlace
	EntryTrace
	EntryStack
	EntryName
	EntryProcess
	EntryReading
	EntryLoss
	EntryNote
	EntryMoment
	EntrySweep
	EntryReported
	EntryCut
	EntryPart
	EntryTensors
	EntryHeap
	EntryBlocks
)

const (
	forgedBlock  = 256 << 10 // bytes of a payload at most
	forgedHeader = 56
	// What a reader takes at most for a block's bytes in the file.
	forgedRatio  = 8 // bytes of payload for each
	forgedRecord = 4 // of them for each record
	// forgedRoom is at most how much larger a compressed payload is, in bytes.
	forgedRoom = 1100
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	forgery, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
)

// A Forger makes recordings that no Writer would write: every checksum is right, and
// every number is the forger's choice. They cost as little of the file as a reader takes.
type Forger struct {
	Records int // so far

	limit   int // bytes of the file
	file    []byte
	payload []byte
	records uint32 // of the block
	blocks  uint64
	time    uint64
	before  [19]uint64 // the fields of the event before
}

// Forge returns a Forger of a file of at most limit bytes.
func Forge(limit int) *Forger {
	header := make([]byte, 32)
	copy(header, "\x89gpumtr\n")
	binary.LittleEndian.PutUint32(header[8:], 13)
	binary.LittleEndian.PutUint32(header[28:], crc32.Checksum(header[:28], castagnoli))
	f := &Forger{limit: limit, file: header}
	f.begin()
	return f
}

func (f *Forger) begin() {
	f.payload, f.records, f.time, f.before = f.payload[:0], 0, 0, [19]uint64{}
}

// Block ends the block.
func (f *Forger) Block() {
	if len(f.payload) == 0 {
		return
	}
	packed := forgery.EncodeAll(f.payload, nil)
	least := max((len(f.payload)+forgedRatio-1)/forgedRatio, forgedRecord*int(f.records))
	if fill := least - len(packed); fill > 0 {
		// A frame that is skipped.
		fill = max(fill-8, 0)
		packed = binary.LittleEndian.AppendUint32(packed, 0x184d2a50)
		packed = binary.LittleEndian.AppendUint32(packed, uint32(fill))
		packed = append(packed, make([]byte, fill)...)
	}
	b := make([]byte, forgedHeader)
	copy(b, "\xf5gmb")
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(packed, castagnoli))
	binary.LittleEndian.PutUint32(b[12:], uint32(len(packed)))
	binary.LittleEndian.PutUint64(b[16:], f.blocks)
	binary.LittleEndian.PutUint32(b[40:], f.records)
	binary.LittleEndian.PutUint32(b[4:], crc32.Update(0, castagnoli, b[8:]))
	f.file = append(append(f.file, b...), packed...)
	f.blocks++
	f.begin()
}

// Room tells whether n more bytes fit the file, and has them begin a new block where the
// current one is too full.
func (f *Forger) Room(n int) bool {
	full := func() bool {
		return len(f.file)+forgedHeader+len(f.payload)+forgedRecord*int(f.records+1)+n+forgedRoom > f.limit
	}
	if len(f.payload)+n > forgedBlock || f.records >= forgedBlock/forgedRecord || full() {
		f.Block()
	}
	return !full()
}

// Bytes ends the file, which does not say that it was closed.
func (f *Forger) Bytes() []byte {
	f.Block()
	return f.file
}

// Entry begins a record.
func (f *Forger) Entry(kind uint64) *Forger {
	if kind != EntryPlace {
		f.records++
		f.Records++
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

// Text appends texts.
func (f *Forger) Text(list ...string) *Forger {
	for _, s := range list {
		f.Uint(uint64(len(s)))
		f.payload = append(f.payload, s...)
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
	f.Entry(EntryProcess).Uint(uint64(p.PID), p.Start).Bool(true).Text(name).Bool(true).Bool(false).Uint(0)
	return f.Text("", "", "", "", "", "", "", "", "")
}

// Place defines a place: with a location, which the caller appends, or without one.
func (f *Forger) Place(id uint64, named bool) *Forger {
	f.Entry(EntryPlace).Uint(id, 0)
	if named {
		return f.Uint(2)
	}
	return f.Uint(0)
}

// Stack tells a stack whose frames are n times the places.
func (f *Forger) Stack(id uint64, p event.Process, n int, places ...uint64) *Forger {
	f.Entry(EntryStack).Uint(id, uint64(p.PID), p.Start, uint64(n*len(places)))
	for range n {
		f.Uint(places...)
	}
	return f.Uint(0)
}

// Event tells an event.
func (f *Forger) Event(e event.Event) *Forger {
	f.Entry(entryEvent).Int(int64(e.Time - f.time))
	f.time = e.Time
	fields := [...]uint64{
		uint64(e.Op), uint64(e.Kind), uint64(e.Space), uint64(e.API), uint64(e.Outer), uint64(e.Result), uint64(e.Device),
		uint64(e.Proc.PID), e.Proc.Start, uint64(e.TID), e.Ctx, e.Stack, e.Addr, e.Size, e.Handle, e.Part, e.Stream,
		uint64(e.Child.PID), e.Child.Start,
	}
	mask := 0
	for i, v := range fields {
		if v != f.before[i] {
			mask |= 1 << i
		}
	}
	if e.Name != "" {
		mask |= 1 << len(fields)
	}
	f.payload = append(f.payload, byte(mask), byte(mask>>8), byte(mask>>16))
	for i, v := range fields {
		if v != f.before[i] {
			f.Uint(v)
		}
	}
	if f.before = fields; e.Name != "" {
		f.Text(e.Name)
	}
	return f
}
