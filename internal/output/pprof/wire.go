package pprof

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of profile.proto that Read looks at. Those of other messages are numbered from
// 1 on, in the order in which assign has them.
const (
	profileSampleType = 1
	profileSample     = 2
	profileMapping    = 3
	profileLocation   = 4
	profileFunction   = 5
	profileString     = 6
	profileTime       = 9
	profileDuration   = 10
	profileComment    = 13

	profileDefaultType = 14

	sampleLocation = 1
	sampleValue    = 2
	sampleLabel    = 3

	locationID      = 1
	locationMapping = 2
	locationAddress = 3
	locationLine    = 4
)

var errMalformed = errors.New("it is damaged")

// A field is one of a message: a number, or bytes, which hold until the next field is read.
type field struct {
	id     protowire.Number
	number uint64
	bytes  []byte // nil for a number
}

// A decoder reads fields until the first error.
type decoder struct{ err error }

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// stream calls each with every field of a profile, one of which is in memory.
func (d *decoder) stream(r *bufio.Reader, each func(field)) {
	var buf []byte
	check := func(err error) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			d.fail(err)
		}
	}
	number := func() uint64 {
		v, err := binary.ReadUvarint(r)
		check(err)
		return v
	}
	for d.err == nil {
		if _, err := r.Peek(1); errors.Is(err, io.EOF) {
			return
		}
		tag := number()
		f := field{id: protowire.Number(tag >> 3)}
		switch protowire.Type(tag & 7) {
		case protowire.VarintType:
			f.number = number()
		case protowire.BytesType:
			n := number()
			if n > maxField {
				d.fail(fmt.Errorf("a field of %d bytes is too large", n))
				return
			}
			buf = slices.Grow(buf[:0], int(n))[:n]
			f.bytes = buf
			_, err := io.ReadFull(r, f.bytes)
			check(err)
		default: // no field of a profile has another type
			d.fail(errMalformed)
		}
		if d.err == nil {
			each(f)
		}
	}
}

// within calls each with every field of a message in a profile.
func (d *decoder) within(b []byte, each func(field)) {
	for len(b) > 0 && d.err == nil {
		id, kind, n := protowire.ConsumeTag(b)
		f := field{id: id}
		size := -1
		switch {
		case n < 0:
		case kind == protowire.VarintType:
			f.number, size = protowire.ConsumeVarint(b[n:])
		case kind == protowire.BytesType:
			f.bytes, size = protowire.ConsumeBytes(b[n:])
		}
		if size < 0 {
			d.fail(errMalformed)
			return
		}
		b = b[n+size:]
		each(f)
	}
}

// assign stores the number fields of a message, the first of which has the number 1.
func (d *decoder) assign(b []byte, to ...*uint64) {
	d.within(b, func(f field) {
		if i := int(f.id) - 1; i < len(to) {
			*to[i] = f.number
		}
	})
}

// numbers calls each with every number of a repeated field, packed or not.
func (d *decoder) numbers(f field, each func(uint64)) {
	if f.bytes == nil {
		each(f.number)
		return
	}
	for b := f.bytes; len(b) > 0 && d.err == nil; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			d.fail(errMalformed)
			return
		}
		each(v)
		b = b[n:]
	}
}
