package pprof

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// Bounds of what Read accepts. Write makes profiles of 6 to 20 times their packed size, which
// need 10 to 25 times that size in memory.
const (
	maxPacked = 256 << 20
	maxField  = 4 << 20 // a string of the command line, or all comments
	// A profile of n bytes may unpack to minRoom + n*unpackedTimes bytes, and need minRoom +
	// n*keptTimes bytes of memory.
	minRoom       = 16 << 20
	unpackedTimes = 100
	keptTimes     = 40
)

// The memory that each part of a profile needs, in bytes, beside its texts.
const (
	textCost     = 24
	functionCost = 64
	mappingCost  = 160
	locationCost = 112
	lineCost     = 80
	sampleCost   = 320
	frameCost    = 8
	commentCost  = 24
)

var errTooLarge = errors.New("it takes too much memory for its size")

// Read returns the snapshot of a profile that Write wrote, as far as the profile has it:
// samples without failed calls and windows, mappings with a path alone, times, the target, and all comments as notes.
// Other profiles are an error, and so are those that would need more memory than one of
// their size that Write wrote.
func Read(r io.Reader) (*snapshot.Snapshot, error) {
	packed, err := io.ReadAll(io.LimitReader(r, maxPacked+1))
	if err == nil && len(packed) > maxPacked {
		err = fmt.Errorf("it is larger than %d bytes", maxPacked)
	}
	var s *snapshot.Snapshot
	if err == nil {
		p := &reader{room: minRoom + keptTimes*int64(len(packed)), functions: map[uint64]functionNames{}, mappings: map[uint64]*mapping{}, locations: map[uint64]*location{}}
		s, err = p.read(packed)
	}
	if err == nil {
		return s, nil
	}
	what := userfile.Sort(packed)
	if what == userfile.Gzip && errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("not a profile that gpumemtrace wrote, or one that is cut short: it was not copied or written to its end; copy it again, or give what -o or --record of a trace wrote")
	}
	if what == userfile.Gzip || what == userfile.Other {
		return nil, fmt.Errorf("not a profile that gpumemtrace wrote: %w; give what -o or --record of a trace wrote", err)
	}
	return nil, fmt.Errorf("not a profile that gpumemtrace wrote but %s; give what -o or --record of a trace wrote", what)
}

// A reader has what the samples of a profile refer to, and what the profile says of itself.
type reader struct {
	decoder
	room int64 // bytes of memory that may still be used

	texts     []string
	functions map[uint64]functionNames
	mappings  map[uint64]*mapping
	locations map[uint64]*location
	types     []uint64 // names of the sample types, as indexes of texts
	comments  []uint64 // as indexes of texts
	columns   []int    // where a sample has each of sampleTypes
	host      int      // where it has hostType, -1 for nowhere
	shown     uint64   // the default type, as an index of texts
	samples   int
	time      int64
	duration  int64

	values []int64              // of the sample that is being read
	frames []*snapshot.Location // of the same sample
}

// functionNames are a function's name, linkage name and file, as indexes of texts.
type functionNames [3]uint64

// A mapping has its path as an index of texts, before these are known.
type mapping struct {
	path uint64
	made *snapshot.Mapping
}

// A location is one before texts are known.
type location struct {
	address uint64
	mapping uint64 // its number, 0 for none
	lines   []line
	made    *snapshot.Location // nil before a sample refers to it
}

type line struct{ function, number uint64 }

// read goes through the profile twice: the texts and what samples refer to stand behind the
// samples.
func (p *reader) read(packed []byte) (*snapshot.Snapshot, error) {
	p.unpack(packed, p.add)
	s := p.about()
	s.Samples = make([]snapshot.Sample, 0, p.samples)
	p.unpack(packed, func(f field) {
		if f.id == profileSample {
			if x := p.sample(f.bytes); x.Values != (snapshot.Values{}) { // others are of windows
				s.Samples = append(s.Samples, x)
			}
		}
	})
	return s, p.err
}

// unpack calls each with every field of a profile, compressed or not.
func (p *reader) unpack(packed []byte, each func(field)) {
	if p.err != nil {
		return
	}
	var r io.Reader = bytes.NewReader(packed)
	if bytes.HasPrefix(packed, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r)
		if err != nil {
			p.fail(err)
			return
		}
		r = z
	}
	limited := &io.LimitedReader{R: r, N: minRoom + unpackedTimes*int64(len(packed))}
	p.stream(bufio.NewReaderSize(limited, 64<<10), each)
	if limited.N <= 0 {
		p.err = errors.New("it unpacks to too much for its size")
	}
}

// spend subtracts n bytes from the room.
func (p *reader) spend(n int) {
	if p.room -= int64(n); p.room < 0 {
		p.fail(errTooLarge)
	}
}

// add stores a field of a profile. Of a sample it counts the cost.
func (p *reader) add(f field) {
	switch f.id {
	case profileString:
		p.spend(textCost + len(f.bytes))
		p.texts = append(p.texts, string(f.bytes))
	case profileSampleType:
		p.spend(textCost)
		var name uint64
		p.assign(f.bytes, &name)
		p.types = append(p.types, name)
	case profileSample:
		p.samples++
		p.spend(sampleCost)
		p.within(f.bytes, func(f field) {
			if f.id == sampleLocation {
				p.numbers(f, func(uint64) { p.spend(frameCost) })
			}
		})
	case profileFunction:
		var id uint64
		var names functionNames
		p.assign(f.bytes, &id, &names[0], &names[1], &names[2])
		if _, twice := p.functions[id]; twice || id == 0 {
			p.fail(errMalformed)
		}
		p.functions[id] = names
		p.spend(functionCost)
	case profileMapping:
		var id, start, limit, offset uint64
		m := &mapping{}
		p.assign(f.bytes, &id, &start, &limit, &offset, &m.path)
		p.mappings[id] = m
		p.spend(mappingCost)
	case profileLocation:
		p.addLocation(f.bytes)
	case profileComment:
		p.numbers(f, func(text uint64) {
			p.comments = append(p.comments, text)
			p.spend(commentCost)
		})
	case profileDefaultType:
		p.shown = f.number
	case profileTime:
		p.time = int64(f.number)
	case profileDuration:
		p.duration = int64(f.number)
	}
}

func (p *reader) addLocation(b []byte) {
	var id uint64
	l := &location{}
	p.within(b, func(f field) {
		switch f.id {
		case locationID:
			id = f.number
		case locationAddress:
			l.address = f.number
		case locationMapping:
			l.mapping = f.number
		case locationLine:
			var x line
			p.assign(f.bytes, &x.function, &x.number)
			l.lines = append(l.lines, x)
			p.spend(lineCost)
		}
	})
	if p.locations[id] != nil || id == 0 {
		p.fail(errMalformed)
	}
	p.locations[id] = l
	p.spend(locationCost)
}

func (p *reader) text(i uint64) string {
	if i >= uint64(len(p.texts)) {
		p.fail(errMalformed)
		return ""
	}
	return p.texts[i]
}

// about returns what a profile says of itself, and finds the columns of its samples.
func (p *reader) about() *snapshot.Snapshot {
	s := &snapshot.Snapshot{}
	column := func(of string) int {
		return slices.IndexFunc(p.types, func(name uint64) bool { return name < uint64(len(p.texts)) && p.texts[name] == of })
	}
	p.host = column(hostType)
	for _, v := range sampleTypes {
		i := column(v.Name)
		if i < 0 {
			p.fail(fmt.Errorf("another program made it, it has no %s", v.Name))
		}
		p.columns = append(p.columns, i)
	}
	for _, i := range p.comments {
		s.Notes = append(s.Notes, p.text(i))
	}
	s.Meta.Duration = time.Duration(p.duration)
	if p.time != 0 {
		s.Meta.Start = time.Unix(0, p.time).UTC()
	}
	s.Meta.Peaks = p.shown < uint64(len(p.texts)) && p.texts[p.shown] == peakType
	for _, note := range slices.Backward(s.Notes) { // the first one counts
		if target, ok := strings.CutPrefix(note, targetName+": "); ok {
			s.Meta.Target = target
		}
		if moment, ok := strings.CutPrefix(note, momentName+": "); ok {
			s.Meta.Moment = moment
		}
	}
	return s
}

// location returns a location under its names.
func (p *reader) location(id uint64) *snapshot.Location {
	raw := p.locations[id]
	if raw == nil {
		p.fail(errMalformed)
		return nil
	}
	if raw.made != nil {
		return raw.made
	}
	l := &snapshot.Location{Address: raw.address, Lines: make([]snapshot.Line, len(raw.lines))}
	if m := p.mappings[raw.mapping]; m != nil && p.text(m.path) != "" {
		if m.made == nil {
			m.made = &snapshot.Mapping{Path: p.text(m.path)}
		}
		l.Mapping = m.made
	}
	for i, x := range raw.lines {
		names, ok := p.functions[x.function]
		if !ok {
			p.fail(errMalformed)
		}
		l.Lines[i] = snapshot.Line{Function: p.text(names[0]), System: p.text(names[1]), File: p.text(names[2]), Line: int(x.number)}
	}
	if len(l.Lines) == 0 { // another program has removed the names
		l.Lines = []snapshot.Line{{Function: fmt.Sprintf("0x%x", l.Address)}}
	}
	raw.lines, raw.made = nil, l
	return l
}

// sample reads a sample.
func (p *reader) sample(b []byte) (to snapshot.Sample) {
	p.values, p.frames = p.values[:0], p.frames[:0]
	p.within(b, func(f field) {
		switch f.id {
		case sampleValue:
			p.numbers(f, func(v uint64) { p.values = append(p.values, int64(v)) })
		case sampleLocation:
			p.numbers(f, func(id uint64) { p.frames = append(p.frames, p.location(id)) })
		case sampleLabel:
			p.label(f.bytes, &to.Labels)
		}
	})
	if len(p.values) != len(p.types) {
		p.fail(errMalformed)
		return to
	}
	for i, v := range sampleTypes {
		*v.Of(&to.Values) = p.values[p.columns[i]]
	}
	if p.host >= 0 && !snapshot.OnGPU(to.Kind) {
		to.InuseBytes, to.PeakBytes = p.values[p.host], p.values[p.host]
	}
	to.Stack = slices.Clone(p.frames)
	return to
}

// label sets a label of a sample, if it is one of snapshot.AllLabels.
func (p *reader) label(b []byte, to *snapshot.Labels) {
	var key, text uint64
	p.assign(b, &key, &text)
	name, value := p.text(key), p.text(text)
	for i := range snapshot.AllLabels {
		if l := &snapshot.AllLabels[i]; l.Name == name && value != "" {
			if err := l.Set(to, value); err != nil {
				p.fail(err)
			}
		}
	}
}
