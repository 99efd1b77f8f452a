package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// repaired returns data as a recording whose checksums are right, its blocks
// where their lengths say.
func repaired(data []byte) []byte {
	data = slices.Clone(data)
	if len(data) < fileHeaderSize {
		return data
	}
	copy(data, fileMagic)
	binary.LittleEndian.PutUint32(data[8:], fileVersion)
	regions := binary.LittleEndian.Uint32(data[12:]) % 5
	binary.LittleEndian.PutUint32(data[12:], regions)
	size := len(data)
	if regions > 0 {
		size = max(blockHeaderSize, (len(data)-fileHeaderSize)/int(regions))
	}
	binary.LittleEndian.PutUint64(data[16:], uint64(size))
	binary.LittleEndian.PutUint32(data[24:], 0)
	binary.LittleEndian.PutUint32(data[28:], crc32.Checksum(data[:28], castagnoli))
	for offset := fileHeaderSize; len(data)-offset >= blockHeaderSize; {
		b := data[offset:]
		n := min(int(binary.LittleEndian.Uint32(b[12:])), maxPayload, len(b)-blockHeaderSize)
		h := blockHeader{
			PayloadCRC: crc32.Checksum(b[blockHeaderSize:blockHeaderSize+n], castagnoli),
			Length:     uint32(n),
			Sequence:   binary.LittleEndian.Uint64(b[16:]),
			Records:    binary.LittleEndian.Uint32(b[40:]),
			Flags:      binary.LittleEndian.Uint32(b[44:]),
			Lost:       binary.LittleEndian.Uint64(b[48:]),
		}
		h.put(b, 0)
		offset += blockHeaderSize + n
	}
	return data
}

// use does what whoever takes a record would.
func use(t *testing.T, rec Record) {
	named := func(p *Place) {
		if l := p.Location(); len(l.Lines) == 0 {
			t.Fatal("a location without lines")
		}
	}
	switch rec := rec.(type) {
	case *event.Event:
		if rec.Kind >= event.NumKinds || rec.Space >= event.NumSpaces {
			t.Fatalf("kind %d, space %d", rec.Kind, rec.Space)
		}
	case *Stack:
		if len(rec.Frames) > maxFrames {
			t.Fatalf("%d frames", len(rec.Frames))
		}
		for _, p := range rec.Frames {
			named(p)
		}
	case *Name:
		rec.Apply()
		named(rec.Place)
	case *Heap:
		if c := encode(rec); c.bad {
			t.Fatal("a heap that no Writer makes")
		}
	case *Reading:
		for _, u := range rec.Uses {
			_ = rec.Devices[u.Device]
		}
		for _, o := range rec.Ordinals {
			_ = rec.Devices[o.Device]
		}
	}
}

// checkReader reads all of data. No bytes may make it panic, take long, or take
// memory that the bytes do not justify.
func checkReader(t *testing.T, data []byte) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		if !errors.Is(err, ErrNotRecording) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrCutShort) {
			t.Fatal(err)
		}
		return
	}
	n := 0
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || rec == nil {
			t.Fatalf("%v, %v", rec, err)
		}
		if n++; n > len(data) {
			t.Fatalf("%d records in %d bytes", n, len(data))
		}
		use(t, rec)
	}
	r.Loss()
	r.Notes()
	runtime.ReadMemStats(&after)
	// A frame of one byte may be a Place that is missing, and have its
	// stand-in for a name.
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20+uint64(len(data))*400 {
		t.Fatalf("%d bytes of memory for a file of %d", took, len(data))
	}
}

// Frames with long names are left out where there are too many, whenever they got their names.
func TestTooMuchText(t *testing.T) {
	text := strings.Repeat("x", maxString-1)
	long := &snapshot.Location{Lines: []snapshot.Line{{Function: text}}}
	before, after := NewPlace(1, 0, long, nil), NewPlace(2, 0, nil, nil)
	var records []Record
	for i := range uint64(40) {
		records = append(records, &Stack{ID: i, Frames: slices.Repeat([]*Place{after}, maxFrames)}, &Stack{ID: 100 + i, Frames: slices.Repeat([]*Place{before}, maxFrames)})
	}
	data := encoded(t, maxPayload, append(records, &Name{Place: after, Location: long})...)
	r := newTestReader(t, data)
	all := readAll(t, r)
	all[len(all)-1].(*Name).Apply()
	bytes, cut := 0, uint64(0)
	for _, rec := range all[:len(all)-1] {
		frames := rec.(*Stack).Frames
		for _, p := range frames {
			bytes += len(p.Location().Lines[0].Function)
		}
		if len(frames) < maxFrames {
			cut++
		}
	}
	if room := someText + textRatio*len(data); bytes > room || bytes < room/2 {
		t.Errorf("frames name %d bytes of text of %d", bytes, room)
	}
	if n := r.Loss()[readShortened].Value; n != cut+1 {
		t.Errorf("%d were cut, and a name: %d are counted", cut, n)
	}
}

func FuzzReader(f *testing.F) {
	for seed := range uint64(6) {
		data := encoded(f, 16<<10, slices.Concat(newMaker(seed).small(25), smallHeap(seed), tensorWindow())...)
		f.Add(data)
		m := newMaker(100 + seed)
		for range 4 {
			mutated := slices.Clone(data)
			for range 1 + m.IntN(8) {
				mutated[m.IntN(len(mutated))] = byte(m.Uint32())
			}
			f.Add(repaired(mutated))
		}
		ring := slices.Clone(data)
		ring[12] = 2
		f.Add(repaired(ring))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		checkReader(t, data)
		checkReader(t, repaired(data))
	})
}

// FuzzPayload has the fuzzer change nothing but what a checksum vouches for.
func FuzzPayload(f *testing.F) {
	for seed := range uint64(6) {
		data := encoded(f, maxPayload, slices.Concat(newMaker(seed).small(25), smallHeap(seed), tensorWindow())...)
		starts := blocksOf(f, data)
		payload, ok := newUnpacker().unpack(&blockHeader{}, data[starts[0]+blockHeaderSize:starts[1]])
		if !ok {
			f.Fatal("a payload of a Writer is not taken")
		}
		f.Add(payload, []byte{}, uint32(0))
		f.Add(payload[:len(payload)/2], payload[len(payload)/2:], uint32(flagKeyframe|flagCut))
	}
	f.Fuzz(func(t *testing.T, a, b []byte, flags uint32) {
		data := layout{}.header()
		for i, p := range [][]byte{a, b, a} {
			data = append(data, packed(p[:min(len(p), maxPayload)], blockHeader{Sequence: uint64(i), Flags: flags >> (8 * i)})...)
		}
		checkReader(t, data)
	})
}

var testPacker = newPacker()

// packed returns a block with a payload.
func packed(payload []byte, h blockHeader) []byte {
	b := block{blockHeader: h, buf: payload}
	testPacker.pack(&b, nil)
	b.Records = b.Length / minRecord
	b.put(b.packed, 0)
	return b.packed
}

// Files that are made to cost much cost what their size is worth.
func TestHostileFiles(t *testing.T) {
	head := layout{}.header()
	header := func(length int, payload []byte, sequence uint64) []byte {
		h := blockHeader{Length: uint32(length), Sequence: sequence, PayloadCRC: crc32.Checksum(payload, castagnoli)}
		b := make([]byte, blockHeaderSize)
		h.put(b, 0)
		return b
	}
	var empty, beyond, bad, apart, frames []byte
	for i := range uint64(100_000) {
		empty = append(empty, header(0, nil, i)...)
		beyond = append(beyond, header(maxPayload, nil, i)...)
		bad = append(bad, header(0, []byte("x"), i)...)
		apart = append(append(apart, header(0, []byte("x"), i)...), 'x')
	}
	stack := byte(entries[reflect.TypeFor[*Stack]()])
	frames = append(frames, stack, 0, 0, 0, 0x80, 0x20) // 4096 frames
	frames = append(frames, make([]byte, maxFrames)...)
	for _, c := range []struct {
		name string
		data []byte
	}{
		{"empty blocks", empty}, {"lengths beyond the end", beyond}, {"bad payloads", bad}, {"blocks apart", apart},
		{"magics", bytes.Repeat([]byte(blockMagic), 1<<20)}, {"zeros", make([]byte, 4<<20)},
		{"undefined frames", packed(frames, blockHeader{})},
		{"cuts", packed([]byte{byte(entries[reflect.TypeFor[*Cut]()]), 0}, blockHeader{})},
	} {
		t.Run(c.name, func(t *testing.T) { checkReader(t, slices.Concat(head, c.data)) })
	}
}
