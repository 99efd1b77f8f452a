package push

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strings"
	"sync"

	"github.com/google/pprof/profile"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A form is which part of a profile a store takes as one pprof profile.
type form struct {
	values part
	// few: no labels of samples but fewLabels.
	few bool
}

type part int

const (
	everything part = iota
	// allocated is what was allocated in the interval: its profile lasts as long.
	allocated
	// held is what was in use at its end, and at the peak: its profile is of a moment.
	held
)

func (p part) has(sampleType string) bool {
	return p == everything || strings.HasPrefix(sampleType, "alloc_") == (p == allocated)
}

// fewLabels make a series each in Pyroscope, which takes the labels of samples for a
// series's own. What the others say, the frames of the stack say too.
var fewLabels = []string{"kind", "gpu", "owner", "category"}

// Field numbers of pprof's profile.proto.
const (
	pprofType        = 1 // Profile.sample_type
	pprofSample      = 2
	pprofMapping     = 3
	pprofLocation    = 4
	pprofFunction    = 5
	pprofString      = 6
	pprofTime        = 9
	pprofDuration    = 10
	pprofPeriodType  = 11
	pprofPeriod      = 12
	pprofDefaultType = 14

	pprofSampleLocations = 1 // Sample.location_id
	pprofSampleValues    = 2
	pprofSampleLabel     = 3

	pprofLabelKey   = 1 // Label.key
	pprofLabelValue = 2 // Label.str

	pprofID = 1 // Mapping.id, Location.id, Function.id

	pprofMappingStart   = 2 // Mapping.memory_start
	pprofMappingLimit   = 3
	pprofMappingOffset  = 4
	pprofMappingFile    = 5
	pprofMappingBuildID = 6
	pprofHasFunctions   = 7 // Mapping.has_functions
	pprofHasFilenames   = 8
	pprofHasLineNumbers = 9
	pprofHasInlines     = 10

	pprofLocationMapping = 2 // Location.mapping_id
	pprofLocationAddress = 3
	pprofLocationLine    = 4

	pprofLineFunction = 1 // Line.function_id
	pprofLineLine     = 2

	pprofFunctionName   = 2 // Function.name
	pprofFunctionSystem = 3
	pprofFunctionFile   = 4
)

// pack returns the part of a profile as gzip-compressed pprof, nil if it has no samples:
// those that are not zero in a form. What all samples refer to, most of a profile, is
// encoded and compressed once for the forms that have all of it.
func (x *process) pack(f form) ([]byte, error) {
	if out, ok := x.gzipped[f]; ok {
		return out, nil
	}
	p := x.profile
	var columns []int
	for i, t := range p.SampleType {
		if f.values.has(t.Type) {
			columns = append(columns, i)
		}
	}
	samples := slices.DeleteFunc(slices.Clone(p.Sample), func(s *profile.Sample) bool {
		return !slices.ContainsFunc(columns, func(c int) bool { return s.Value[c] != 0 })
	})
	x.gzipped[f] = nil
	if len(samples) == 0 {
		return nil, nil
	}
	used, all := locationsOf(p, samples)
	z := deflaters.Get().(*deflater)
	defer deflaters.Put(z)
	t := x.tables
	if t == nil || !all {
		var err error
		if t, err = newTables(z, p, samples, used); err != nil {
			return nil, err
		}
		if all {
			x.tables = t
		}
	}
	m := z.room[:0]
	for _, c := range columns {
		m.bytes(pprofType, t.valueType(p.SampleType[c]))
	}
	m.bytes(pprofPeriodType, t.valueType(p.PeriodType))
	m.number(pprofPeriod, uint64(p.Period))
	m.number(pprofTime, uint64(x.end.UnixNano()))
	if f.values != held {
		m.number(pprofDuration, uint64(x.end.Sub(x.begin)))
	}
	if f.values != allocated {
		m.number(pprofDefaultType, t.text(p.DefaultSampleType))
	}
	for _, s := range samples {
		m.bytes(pprofSample, t.sample(s, columns, f.few))
	}
	z.room = m
	out, err := t.with(z, m)
	if err == nil {
		x.gzipped[f] = out
	}
	return out, err
}

// locationsOf tells which locations of p its samples have, by ID, and whether that is all.
func locationsOf(p *profile.Profile, samples []*profile.Sample) (used []bool, all bool) {
	used = make([]bool, len(p.Location)+1) // pprofout numbers them from 1 on
	n := 0
	for _, s := range samples {
		for _, l := range s.Location {
			if !used[l.ID] {
				used[l.ID] = true
				n++
			}
		}
	}
	return used, n == len(p.Location)
}

// Tables are what the samples of a profile refer to, encoded and compressed.
type tables struct {
	strings  map[string]uint64
	deflated []byte // whole blocks of a stream that more blocks follow
	sum      uint32 // CRC-32 of what is in it
	size     int    // of that, in bytes
	// Room for a message, while it is made.
	one, label, kind message
	numbers          []uint64
}

// newTables returns those of samples of p, which have the locations in used.
func newTables(z *deflater, p *profile.Profile, samples []*profile.Sample, used []bool) (*tables, error) {
	t := &tables{strings: map[string]uint64{}}
	m := z.room[:0]
	var line message
	n := uint64(0)
	// What comes once is not looked for: no reader minds a text that is there twice.
	once := func(s string) uint64 {
		m.text(pprofString, s)
		n++
		return n - 1
	}
	text := func(s string) uint64 {
		i, ok := t.strings[s]
		if !ok {
			i = once(s)
			t.strings[s] = i
		}
		return i
	}
	text("") // the first is
	for _, v := range append(slices.Clone(p.SampleType), p.PeriodType) {
		text(v.Type)
		text(v.Unit)
	}
	text(p.DefaultSampleType)
	for _, s := range samples {
		for i := range snapshot.AllLabels {
			name := snapshot.AllLabels[i].Name
			for _, value := range s.Label[name] {
				text(name)
				text(value)
			}
		}
	}
	one := &t.one
	flag := func(field protowire.Number, set bool) {
		if set {
			one.number(field, 1)
		}
	}
	for _, x := range p.Mapping {
		*one = (*one)[:0]
		one.number(pprofID, x.ID)
		one.number(pprofMappingStart, x.Start)
		one.number(pprofMappingLimit, x.Limit)
		one.number(pprofMappingOffset, x.Offset)
		one.number(pprofMappingFile, text(x.File))
		one.number(pprofMappingBuildID, text(x.BuildID))
		flag(pprofHasFunctions, x.HasFunctions)
		flag(pprofHasFilenames, x.HasFilenames)
		flag(pprofHasLineNumbers, x.HasLineNumbers)
		flag(pprofHasInlines, x.HasInlineFrames)
		m.bytes(pprofMapping, *one)
	}
	functions := make([]bool, len(p.Function)+1)
	for _, l := range p.Location {
		if !used[l.ID] {
			continue
		}
		*one = (*one)[:0]
		one.number(pprofID, l.ID)
		if l.Mapping != nil {
			one.number(pprofLocationMapping, l.Mapping.ID)
		}
		one.number(pprofLocationAddress, l.Address)
		for i := range l.Line {
			functions[l.Line[i].Function.ID] = true
			line = line[:0]
			line.number(pprofLineFunction, l.Line[i].Function.ID)
			line.number(pprofLineLine, uint64(l.Line[i].Line))
			one.bytes(pprofLocationLine, line)
		}
		m.bytes(pprofLocation, *one)
	}
	for _, f := range p.Function {
		if !functions[f.ID] {
			continue
		}
		*one = (*one)[:0]
		one.number(pprofID, f.ID)
		one.number(pprofFunctionName, once(f.Name))
		one.number(pprofFunctionSystem, text(f.SystemName))
		one.number(pprofFunctionFile, text(f.Filename))
		m.bytes(pprofFunction, *one)
	}
	z.room = m
	t.sum, t.size = crc32.ChecksumIEEE(m), len(m)
	var err error
	t.deflated, err = z.deflated(make([]byte, 0, len(m)/2), m, (*flate.Writer).Flush)
	return t, err
}

func (t *tables) text(s string) uint64 { return t.strings[s] }

func (t *tables) valueType(v *profile.ValueType) message {
	t.kind = t.kind[:0]
	t.kind.number(valueType, t.text(v.Type))
	t.kind.number(valueUnit, t.text(v.Unit))
	return t.kind
}

// sample returns some values of a sample, and all of its labels or few.
func (t *tables) sample(s *profile.Sample, columns []int, few bool) message {
	one := &t.one
	*one, t.numbers = (*one)[:0], t.numbers[:0]
	for _, l := range s.Location {
		t.numbers = append(t.numbers, l.ID)
	}
	one.packed(pprofSampleLocations, t.numbers)
	t.numbers = t.numbers[:0]
	for _, c := range columns {
		t.numbers = append(t.numbers, uint64(s.Value[c]))
	}
	one.packed(pprofSampleValues, t.numbers)
	for i := range snapshot.AllLabels {
		name := snapshot.AllLabels[i].Name
		if few && !slices.Contains(fewLabels, name) {
			continue
		}
		for _, value := range s.Label[name] {
			t.label = t.label[:0]
			t.label.number(pprofLabelKey, t.text(name))
			t.label.number(pprofLabelValue, t.text(value))
			one.bytes(pprofSampleLabel, t.label)
		}
	}
	return *one
}

// with returns the gzip file of a message that has the tables and m. The fields of a
// message may come in any order; a gzip file is one stream of blocks (RFC 1952).
func (t *tables) with(z *deflater, m message) ([]byte, error) {
	out := make([]byte, 0, len(t.deflated)+len(m)/2+64)
	out = append(out, 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255) // deflate, no time, fastest, no system
	out = append(out, t.deflated...)
	out, err := z.deflated(out, m, (*flate.Writer).Close)
	out = binary.LittleEndian.AppendUint32(out, crc32.Update(t.sum, crc32.IEEETable, m))
	return binary.LittleEndian.AppendUint32(out, uint32(t.size+len(m))), err
}

// compress returns b as a gzip file.
func compress(b []byte) []byte {
	z := deflaters.Get().(*deflater)
	defer deflaters.Put(z)
	out, _ := new(tables).with(z, b) // into memory
	return out
}

// A deflater is of a megabyte, and has room for a message while it is made.
type deflater struct {
	w    *flate.Writer
	room message
}

var deflaters = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // which is a level
	return &deflater{w: w}
}}

// deflated appends to out the blocks of b, which refer to nothing before them.
func (z *deflater) deflated(out, b []byte, end func(*flate.Writer) error) ([]byte, error) {
	buffer := bytes.NewBuffer(out)
	z.w.Reset(buffer)
	_, err := z.w.Write(b)
	if err == nil {
		err = end(z.w)
	}
	return buffer.Bytes(), err
}
