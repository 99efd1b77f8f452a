package pprofout

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The fields of profile.proto that Read looks at.
const (
	profileSampleType = 1
	profileSample     = 2
	profileLocation   = 4
	profileFunction   = 5
	profileString     = 6
	profileTime       = 9
	profileDuration   = 10
	profileComment    = 13

	valueTypeType = 1

	sampleLocation = 1
	sampleValue    = 2
	sampleLabel    = 3

	labelKey  = 1
	labelText = 2

	locationID      = 1
	locationAddress = 3
	locationLine    = 4

	lineFunction = 1
	lineNumber   = 2

	functionID     = 1
	functionName   = 2
	functionSystem = 3
	functionFile   = 4
)

// The wire types of protocol buffers that are not refused.
const (
	wireVarint = 0
	wire64     = 1
	wireBytes  = 2
	wire32     = 5
)

var errMalformed = errors.New("it is damaged")

// A field is one of a message: a number, or bytes, which hold until the next field is read.
type field struct {
	id     uint64
	number uint64
	bytes  []byte // nil for a number
}

// fields calls each with every field of a profile, of which it keeps one in memory.
func fields(r *bufio.Reader, each func(field) error) error {
	buf := make([]byte, 4096)
	for {
		tag, err := binary.ReadUvarint(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f := field{id: tag >> 3}
		switch tag & 7 {
		case wireVarint:
			if f.number, err = binary.ReadUvarint(r); err != nil {
				return cutShort(err)
			}
		case wireBytes:
			n, err := binary.ReadUvarint(r)
			if err != nil {
				return cutShort(err)
			}
			if n > maxField {
				return fmt.Errorf("a field of %d bytes is too large", n)
			}
			if uint64(cap(buf)) < n {
				buf = make([]byte, n)
			}
			f.bytes = buf[:n]
			if _, err := io.ReadFull(r, f.bytes); err != nil {
				return cutShort(err)
			}
		case wire64, wire32: // no field of a profile has one
			if _, err := r.Discard(fixedSize(tag & 7)); err != nil {
				return cutShort(err)
			}
			continue
		default:
			return errMalformed
		}
		if err := each(f); err != nil {
			return err
		}
	}
}

func fixedSize(wire uint64) int {
	if wire == wire64 {
		return 8
	}
	return 4
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// within calls each with every field of a message in a profile.
func within(b []byte, each func(field) error) error {
	number := func() (uint64, error) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, errMalformed
		}
		b = b[n:]
		return v, nil
	}
	for len(b) > 0 {
		tag, err := number()
		if err != nil {
			return err
		}
		f := field{id: tag >> 3}
		switch tag & 7 {
		case wireVarint:
			if f.number, err = number(); err != nil {
				return err
			}
		case wireBytes:
			n, err := number()
			if err != nil || n > uint64(len(b)) {
				return errMalformed
			}
			f.bytes, b = b[:n:n], b[n:]
		case wire64, wire32:
			n := fixedSize(tag & 7)
			if n > len(b) {
				return errMalformed
			}
			b = b[n:]
			continue
		default:
			return errMalformed
		}
		if err := each(f); err != nil {
			return err
		}
	}
	return nil
}

// numbers calls each with every number of a repeated field, packed or not.
func (f *field) numbers(each func(uint64) error) error {
	if f.bytes == nil {
		return each(f.number)
	}
	for b := f.bytes; len(b) > 0; {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return errMalformed
		}
		if err := each(v); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
