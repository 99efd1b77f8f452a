package pprofout

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
)

// Bounds of what Read takes. Write makes profiles of 6 to 20 times their packed size, which
// take 10 to 25 times that size in memory.
const (
	maxPacked = 256 << 20
	maxField  = 4 << 20 // a string of the command line, or all comments
	// A profile of n bytes may unpack to minRoom + n*unpackedTimes bytes, and what is kept
	// of it may take minRoom + n*keptTimes bytes of memory.
	minRoom       = 16 << 20
	unpackedTimes = 100
	keptTimes     = 40
)

// What each part of a profile takes in memory, in bytes, beside its texts.
const (
	textCost     = 24
	functionCost = 64
	locationCost = 112
	lineCost     = 80
	sampleCost   = 320
	frameCost    = 8
	commentCost  = 24
)

var errTooLarge = errors.New("it takes too much memory for its size")

// Read returns the snapshot of a profile that Write wrote, as far as that tells
// of it: samples without mappings and failed calls, times, the target, and all
// comments as notes. Other profiles are an error, and so are those that would take more
// memory than one of their size that Write wrote: nothing of them is kept.
func Read(r io.Reader) (*snapshot.Snapshot, error) {
	s, err := read(r)
	if err != nil {
		return nil, fmt.Errorf("not a profile that gpumemtrace wrote: %w", err)
	}
	return s, nil
}

func read(r io.Reader) (*snapshot.Snapshot, error) {
	packed, err := io.ReadAll(io.LimitReader(r, maxPacked+1))
	if err != nil {
		return nil, err
	}
	if len(packed) > maxPacked {
		return nil, fmt.Errorf("it is larger than %d bytes", maxPacked)
	}
	p := &parts{
		room:      minRoom + keptTimes*int64(len(packed)),
		functions: map[uint64]functionNames{},
		locations: map[uint64]*snapshot.Location{},
	}
	// The texts and what samples refer to stand behind the samples.
	if err := each(packed, p.take); err != nil {
		return nil, err
	}
	if err := p.resolve(); err != nil {
		return nil, err
	}
	s, err := p.snapshot()
	if err != nil {
		return nil, err
	}
	s.Samples = make([]snapshot.Sample, 0, p.samples)
	err = each(packed, func(f field) error {
		if f.id != profileSample {
			return nil
		}
		sample, err := p.sample(f.bytes)
		s.Samples = append(s.Samples, sample)
		return err
	})
	return s, err
}

// each calls do with every field of a profile, packed or not.
func each(packed []byte, do func(field) error) error {
	var r io.Reader = bytes.NewReader(packed)
	if bytes.HasPrefix(packed, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		r = z
	}
	limited := &io.LimitedReader{R: r, N: minRoom + unpackedTimes*int64(len(packed))}
	err := fields(bufio.NewReaderSize(limited, 64<<10), do)
	if limited.N <= 0 {
		return errors.New("it unpacks to too much for its size")
	}
	return err
}

// parts are what the samples of a profile refer to, and what it says of itself.
type parts struct {
	room int64 // bytes of memory that may still be taken

	texts     []string
	functions map[uint64]functionNames
	locations map[uint64]*snapshot.Location
	lines     []locationLines
	types     []uint64 // names of the sample types, as indexes of texts
	comments  []uint64 // likewise
	columns   []int    // where a sample has each of sampleTypes
	samples   int
	time      int64
	duration  int64

	values []int64              // of a sample that is being read
	frames []*snapshot.Location // likewise
}

// functionNames are indexes of texts.
type functionNames struct{ name, system, file uint64 }

// locationLines are what a location has for lines before texts are known.
type locationLines struct {
	of    *snapshot.Location
	lines []lineNumbers
}

type lineNumbers struct {
	function uint64
	line     int64
}

// spend takes n bytes of the room.
func (p *parts) spend(n int) error {
	if p.room -= int64(n); p.room < 0 {
		return errTooLarge
	}
	return nil
}

// take keeps a field of a profile, but of a sample what it costs.
func (p *parts) take(f field) error {
	switch f.id {
	case profileString:
		if err := p.spend(textCost + len(f.bytes)); err != nil {
			return err
		}
		p.texts = append(p.texts, string(f.bytes))
	case profileSampleType:
		if err := p.spend(textCost); err != nil {
			return err
		}
		var name uint64
		err := within(f.bytes, func(f field) error {
			if f.id == valueTypeType {
				name = f.number
			}
			return nil
		})
		p.types = append(p.types, name)
		return err
	case profileSample:
		p.samples++
		frames := 0
		err := within(f.bytes, func(f field) error {
			if f.id != sampleLocation {
				return nil
			}
			return f.numbers(func(uint64) error {
				frames++
				return nil
			})
		})
		if err != nil {
			return err
		}
		return p.spend(sampleCost + frames*frameCost)
	case profileFunction:
		return p.takeFunction(f.bytes)
	case profileLocation:
		return p.takeLocation(f.bytes)
	case profileComment:
		return f.numbers(func(text uint64) error {
			p.comments = append(p.comments, text)
			return p.spend(commentCost)
		})
	case profileTime:
		p.time = int64(f.number)
	case profileDuration:
		p.duration = int64(f.number)
	}
	return nil
}

func (p *parts) takeFunction(b []byte) error {
	var id uint64
	var names functionNames
	err := within(b, func(f field) error {
		switch f.id {
		case functionID:
			id = f.number
		case functionName:
			names.name = f.number
		case functionSystem:
			names.system = f.number
		case functionFile:
			names.file = f.number
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, twice := p.functions[id]; twice || id == 0 {
		return errMalformed
	}
	p.functions[id] = names
	return p.spend(functionCost)
}

func (p *parts) takeLocation(b []byte) error {
	var id uint64
	l := &snapshot.Location{}
	var lines []lineNumbers
	err := within(b, func(f field) error {
		switch f.id {
		case locationID:
			id = f.number
		case locationAddress:
			l.Address = f.number
		case locationLine:
			var line lineNumbers
			if err := within(f.bytes, func(f field) error {
				switch f.id {
				case lineFunction:
					line.function = f.number
				case lineNumber:
					line.line = int64(f.number)
				}
				return nil
			}); err != nil {
				return err
			}
			lines = append(lines, line)
			return p.spend(lineCost)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if p.locations[id] != nil || id == 0 {
		return errMalformed
	}
	p.locations[id], p.lines = l, append(p.lines, locationLines{l, lines})
	return p.spend(locationCost)
}

// resolve puts texts in the place of numbers, and finds the columns of the samples.
func (p *parts) resolve() error {
	p.columns = make([]int, len(sampleTypes))
	for i, v := range sampleTypes {
		p.columns[i] = slices.IndexFunc(p.types, func(name uint64) bool {
			text, _ := p.text(name)
			return text == v.Name
		})
		if p.columns[i] < 0 {
			return fmt.Errorf("it has no %s", v.Name)
		}
	}
	for _, x := range p.lines {
		l, lines := x.of, x.lines
		if len(lines) == 0 { // another program has taken the names away
			l.Lines = []snapshot.Line{{Function: fmt.Sprintf("0x%x", l.Address)}}
			continue
		}
		l.Lines = make([]snapshot.Line, len(lines))
		for i, line := range lines {
			names, ok := p.functions[line.function]
			if !ok {
				return errMalformed
			}
			to := &l.Lines[i]
			to.Line = int(line.line)
			for _, x := range []struct {
				to   *string
				text uint64
			}{{&to.Function, names.name}, {&to.System, names.system}, {&to.File, names.file}} {
				var err error
				if *x.to, err = p.text(x.text); err != nil {
					return err
				}
			}
		}
	}
	p.lines, p.functions = nil, nil
	return nil
}

func (p *parts) text(i uint64) (string, error) {
	if i >= uint64(len(p.texts)) {
		return "", errMalformed
	}
	return p.texts[i], nil
}

// snapshot returns what a profile says of itself.
func (p *parts) snapshot() (*snapshot.Snapshot, error) {
	s := &snapshot.Snapshot{}
	for _, i := range p.comments {
		text, err := p.text(i)
		if err != nil {
			return nil, err
		}
		s.Notes = append(s.Notes, text)
	}
	s.Meta.Duration = time.Duration(p.duration)
	if p.time != 0 {
		s.Meta.Start = time.Unix(0, p.time).UTC()
	}
	for _, note := range slices.Backward(s.Notes) { // the first one counts
		if target, ok := strings.CutPrefix(note, targetName+": "); ok {
			s.Meta.Target = target
		}
	}
	return s, nil
}

// sample reads a sample.
func (p *parts) sample(b []byte) (to snapshot.Sample, err error) {
	p.values, p.frames = p.values[:0], p.frames[:0]
	err = within(b, func(f field) error {
		switch f.id {
		case sampleValue:
			return f.numbers(func(v uint64) error {
				p.values = append(p.values, int64(v))
				return nil
			})
		case sampleLocation:
			return f.numbers(func(id uint64) error {
				l := p.locations[id]
				if l == nil {
					return errMalformed
				}
				p.frames = append(p.frames, l)
				return nil
			})
		case sampleLabel:
			return p.label(f.bytes, &to.Labels)
		}
		return nil
	})
	if err != nil {
		return to, err
	}
	if len(p.values) != len(p.types) {
		return to, errMalformed
	}
	for i, v := range sampleTypes {
		*v.Of(&to.Values) = p.values[p.columns[i]]
	}
	to.Stack = slices.Clone(p.frames)
	return to, nil
}

// label reads a label of a sample, if it is one of snapshot.AllLabels.
func (p *parts) label(b []byte, to *snapshot.Labels) error {
	var key, text uint64
	if err := within(b, func(f field) error {
		switch f.id {
		case labelKey:
			key = f.number
		case labelText:
			text = f.number
		}
		return nil
	}); err != nil {
		return err
	}
	name, err := p.text(key)
	if err != nil {
		return err
	}
	value, err := p.text(text)
	if err != nil {
		return err
	}
	for i := range snapshot.AllLabels {
		if l := &snapshot.AllLabels[i]; l.Name == name && value != "" {
			return l.Set(to, value)
		}
	}
	return nil
}
