package unwind

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
)

// head is a frame's first word (support/ebpf/tracemgmt.h, frame_header).
func head(kind, flags, length, data uint64) uint64 {
	return kind<<60 | flags<<56 | length<<52 | data
}

func TestDecodeNative(t *testing.T) {
	const native, unknown, isError, isReturn = 3, 0, 1, 2
	var u Unwinder
	for _, tt := range []struct {
		name  string
		flags uint32
		words []uint64
		want  []Frame
		err   string
	}{
		{"frame pointers", 0, []uint64{0x1000, 0x2000},
			[]Frame{{Addr: 0x1000, Return: true}, {Addr: 0x2000, Return: true}}, ErrFramePointers.Error()},
		{"complete", flagFrames, []uint64{head(native, 0, 1, 0x1000), head(native, isReturn, 1, 0x7fff_ffff_f000)},
			[]Frame{{Addr: 0x1000, Return: true}, {Addr: 0x7fff_ffff_f000, Return: true}}, ""},
		{"below a signal", flagFrames, []uint64{head(native, 0, 1, 1), head(native, isReturn, 1, 2), head(native, 0, 1, 3)},
			[]Frame{{Addr: 1, Return: true}, {Addr: 2, Return: true}, {Addr: 3}}, ""},
		{"ended early", flagFrames | 4005<<errorShift, []uint64{head(native, 0, 1, 1), head(unknown, isError, 1, 4005)},
			[]Frame{{Addr: 1, Return: true}}, "unwind ended early: code without unwind information"},
		{"code nobody knows", flagFrames | 9999<<errorShift, nil, nil, "unwind ended early: error 9999"},
		{"length 0", flagFrames, []uint64{head(native, 0, 0, 1)}, nil, "malformed stack record"},
		{"cut off", flagFrames, []uint64{head(native, 0, 3, 1)}, nil, "malformed stack record"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := u.Decode(1, tt.flags, tt.words)
			if !slices.Equal(s.Frames, tt.want) {
				t.Errorf("frames %+v, want %+v", s.Frames, tt.want)
			}
			if got := errText(s.Err); got != tt.err {
				t.Errorf("error %q, want %q", got, tt.err)
			}
		})
	}
	var e Error
	if s := u.Decode(1, flagFrames|5<<errorShift, nil); !errors.As(s.Err, &e) || e != 5 {
		t.Errorf("error %v is no Error 5", s.Err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Records are the kernel's, but a damaged one must not end the tracer. Python
// frames need a process and are left out.
func FuzzDecode(f *testing.F) {
	f.Add(uint32(flagFrames), []byte("\x00\x00\x00\x00\x00\x00\x10\x30"))
	f.Add(uint32(0), []byte("12345678"))
	f.Fuzz(func(t *testing.T, flags uint32, b []byte) {
		var words []uint64
		for ; len(b) >= 8; b = b[8:] {
			if w := binary.NativeEndian.Uint64(b); w>>60 != 1 {
				words = append(words, w)
			}
		}
		var u Unwinder
		if s := u.Decode(1, flags, words); len(s.Frames) > len(words) {
			t.Errorf("%d frames from %d words", len(s.Frames), len(words))
		}
	})
}

// The tables and lines are those of a generator function, as CPython gives them:
// co_linetable, and co_lines() for each code unit.
func TestLines(t *testing.T) {
	table := func(s string) lineTable {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return lineTable{first: 6, table: b}
	}
	v312 := table("e800f88000dc040b88418871844dd80a0b8347f9")
	for unit, want := range map[int]int{0: 6, 1: 0, 2: 6, 3: 7, 14: 7, 15: 8, 19: 8, 20: 0, 21: 0, 22: 0, -1: 6} {
		if got, _ := v312.line311(unit); got != want {
			t.Errorf("3.12: unit %d: line %d, want %d", unit, got, want)
		}
	}
	v310 := table("02800a010a01")
	for unit, want := range map[int]int{0: 0, 1: 7, 5: 7, 6: 8, 10: 8, 11: 0} {
		if got, _ := v310.line310(unit); got != want {
			t.Errorf("3.10: instruction %d: line %d, want %d", unit, got, want)
		}
	}
}

// A traced process may have anything where a line table should be.
func FuzzLines(f *testing.F) {
	f.Add([]byte("\xe8\x00\xf8\x80\x00\xdc\x04\x0b"), 3)
	f.Add([]byte("\x02\x80\x0a\x01"), 1)
	f.Fuzz(func(t *testing.T, b []byte, unit int) {
		for _, line := range []func(lineTable, int) (int, error){lineTable.line310, lineTable.line311} {
			line(lineTable{first: 1, table: b}, unit)
		}
	})
}
