package unwind

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// at is a native frame's two words (bpf/unwind_slot.h, struct unwind_frame).
func at(flags, address uint64) []uint64 { return []uint64{flags<<frameShift | address, 0} }

func TestDecodeNative(t *testing.T) {
	var u Unwinder
	for _, tt := range []struct {
		name   string
		flags  uint32
		frames uint32
		words  []uint64
		want   []Frame
		err    string
	}{
		{"frame pointers", 0, 2, []uint64{0x1000, 0x2000},
			[]Frame{{Addr: 0x1000, Return: true}, {Addr: 0x2000, Return: true}}, ErrFramePointers.Error()},
		{"complete", flagFrames, 2, slices.Concat(at(0, 0x1000), at(frameReturn, 0x7fff_ffff_f000)),
			[]Frame{{Addr: 0x1000, Return: true}, {Addr: 0x7fff_ffff_f000, Return: true}}, ""},
		{"below a signal", flagFrames, 3, slices.Concat(at(0, 1), at(frameReturn, 2), at(0, 3)),
			[]Frame{{Addr: 1, Return: true}, {Addr: 2, Return: true}, {Addr: 3}}, ""},
		{"guessed", flagFrames, 2, slices.Concat(at(0, 1), at(frameReturn|frameGuessed, 2)),
			[]Frame{{Addr: 1, Return: true}, {Addr: 2, Return: true, Guessed: true}}, ""},
		{"ended early", flagFrames | 4005<<errorShift, 1, at(0, 1),
			[]Frame{{Addr: 1, Return: true}}, "unwind ended early: code without unwind information"},
		{"code nobody knows", flagFrames | 9999<<errorShift, 0, nil, nil, "unwind ended early: error 9999"},
		{"half a frame", flagFrames, 1, []uint64{1}, nil, "malformed stack record"},
		{"too few frames", flagFrames, 2, at(0, 1), nil, "malformed stack record"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := u.Decode(1, tt.flags, tt.frames, tt.words)
			if !slices.Equal(s.Frames, tt.want) {
				t.Errorf("frames %+v, want %+v", s.Frames, tt.want)
			}
			if got := errText(s.Err); got != tt.err {
				t.Errorf("error %q, want %q", got, tt.err)
			}
		})
	}
	var e Error
	if s := u.Decode(1, flagFrames|5<<errorShift, 0, nil); !errors.As(s.Err, &e) || e != 5 {
		t.Errorf("error %v is no Error 5", s.Err)
	}
}

// Of a deep stack the kernel side keeps the leaf's frames, and the root's last ones
// in a ring.
func TestDecodeTruncated(t *testing.T) {
	for _, frames := range []int{leafFrames + rootFrames, leafFrames + rootFrames + 1, leafFrames + 2*rootFrames, 8000} {
		words := make([]uint64, 2*(leafFrames+rootFrames))
		for i := range frames {
			slot := i
			if i >= leafFrames {
				slot = leafFrames + (i-leafFrames)%rootFrames
			}
			words[2*slot] = uint64(i + 1)
		}
		var u Unwinder
		s := u.Decode(1, flagFrames, uint32(frames), words)
		if s.Err != nil || s.Truncated != frames-leafFrames-rootFrames || len(s.Frames) != leafFrames+rootFrames {
			t.Fatalf("%d frames: %d lack of %d, %v", frames, s.Truncated, len(s.Frames), s.Err)
		}
		for i, f := range s.Frames {
			want := i + 1
			if i >= leafFrames {
				want += s.Truncated
			}
			if f.Addr != uint64(want) {
				t.Fatalf("%d frames: frame %d is %d, want %d", frames, i, f.Addr, want)
			}
		}
	}
}

// Late Python frames come last in a record, and stand behind the last of the others.
func TestDecodeLate(t *testing.T) {
	native := func(n uint64) []uint64 { return at(frameReturn, n) }
	python := func(n uint64) []uint64 { return at(framePython, n) }
	late := func(n uint64) []uint64 { return at(framePython|frameLate, n) }
	for _, tt := range []struct {
		name  string
		words []uint64
		want  string // n for a native frame, p for a Python frame
		order []uint64
	}{
		{"none", slices.Concat(native(1), python(2), native(3)), "npn", []uint64{2}},
		{"behind the last", slices.Concat(native(1), python(2), native(3), python(4), native(5), native(6), late(7), late(8)),
			"npnpppnn", []uint64{2, 4, 7, 8}},
		{"of no others", slices.Concat(native(1), native(2), late(3)), "nnp", []uint64{3}},
		{"only", late(1), "p", []uint64{1}},
		{"not the last", slices.Concat(late(1), python(2), native(3), late(4), native(5)), "ppnpn", []uint64{1, 2, 4}},
	} {
		s, frames := decode(flagFrames, uint32(len(tt.words)/2), tt.words)
		var kinds strings.Builder
		for _, f := range s.Frames {
			kinds.WriteByte("np"[f.Kind])
		}
		var order []uint64
		for _, f := range frames {
			order = append(order, f.object)
		}
		if kinds.String() != tt.want || !slices.Equal(order, tt.order) {
			t.Errorf("%s: %s %d, want %s %d", tt.name, kinds.String(), order, tt.want, tt.order)
		}
	}
}

// Late frames of a stack that is cut stay on their side of the cut.
func TestDecodeLateTruncated(t *testing.T) {
	const kept, lack = leafFrames + rootFrames, 100
	for _, tt := range []struct {
		name         string
		python, late int // the last Python frame, and the first late one, of kept+lack
		first, cut   int // where that is shown, and the cut
	}{
		{"before the cut", 10, kept + lack - 4, leafFrames, leafFrames},
		{"lost", leafFrames + 50, kept + lack - 4, leafFrames, leafFrames},
		{"behind the cut", leafFrames + 100 + lack, kept + lack - 4, leafFrames + 101, leafFrames},
		{"more than are kept", 10, leafFrames - 20, 11, 11 + 20},
	} {
		words := make([]uint64, 2*kept)
		for i := range kept + lack {
			slot := i
			if i >= leafFrames {
				slot = leafFrames + (i-leafFrames)%rootFrames
			}
			flags := uint64(0)
			switch {
			case i >= tt.late:
				flags = framePython | frameLate
			case i == tt.python:
				flags = framePython
			}
			copy(words[2*slot:], at(flags, uint64(i+1)))
		}
		s, frames := decode(flagFrames, kept+lack, words)
		late := slices.IndexFunc(frames, func(f pythonFrame) bool { return f.object > uint64(tt.late) })
		first := -1
		for i, f := range s.Frames {
			if f.Kind == Python {
				if late--; late < 0 && first < 0 {
					first = i
				}
			}
		}
		if s.Truncated != lack || s.TruncatedAt != tt.cut || first != tt.first || len(s.Frames) != kept {
			t.Errorf("%s: %d lack at %d, late from %d on; want %d, %d", tt.name, s.Truncated, s.TruncatedAt, first, tt.cut, tt.first)
		}
	}
}

// Frames that Python does not show go, and the cut stays where it is.
func TestStackName(t *testing.T) {
	frame := func(name string) namedFrame { return namedFrame{Frame: Frame{Kind: Python, Function: name}} }
	s := Stack{Frames: []Frame{{Kind: Python}, {Addr: 1}, {Kind: Python}, {Kind: Python}, {Addr: 2}}, Truncated: 7, TruncatedAt: 3}
	unnamed := s.name([]namedFrame{frame("a"), {hidden: true}, frame("")})
	want := []Frame{{Kind: Python, Function: "a"}, {Addr: 1}, {Kind: Python}, {Addr: 2}}
	if !slices.Equal(s.Frames, want) || s.TruncatedAt != 2 || unnamed != 1 {
		t.Errorf("%+v at %d, %d without a name", s.Frames, s.TruncatedAt, unnamed)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Records are the kernel's, but a damaged one must not end the tracer.
func FuzzDecode(f *testing.F) {
	f.Add(uint32(flagFrames), uint32(1), []byte("\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(uint32(0), uint32(1), []byte("12345678"))
	f.Add(uint32(flagFrames), uint32(1<<31), make([]byte, 16*(leafFrames+rootFrames)))
	f.Fuzz(func(t *testing.T, flags, frames uint32, b []byte) {
		var words []uint64
		for ; len(b) >= 8; b = b[8:] {
			words = append(words, binary.NativeEndian.Uint64(b))
		}
		s, python := decode(flags, frames, words)
		if len(s.Frames) > len(words) || s.TruncatedAt > len(s.Frames) {
			t.Errorf("%d frames from %d words, cut at %d", len(s.Frames), len(words), s.TruncatedAt)
		}
		s.name(make([]namedFrame, len(python)))
	})
}
