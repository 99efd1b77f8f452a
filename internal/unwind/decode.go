package unwind

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Kind is what sort of frame a Frame is.
type Kind uint8

const (
	Native Kind = iota
	Python
)

// A Frame is one frame of a stack.
type Frame struct {
	Kind Kind
	// Addr is a native frame's address in the process. When Return is set it
	// is where a call returns to, which may be past the end of the calling
	// function or line: look up Addr-1.
	Addr   uint64
	Return bool
	// Guessed says that the code has no unwind table, so that the frames around it
	// are what its frame pointer shows.
	Guessed bool
	// Function, File and Line are a Python frame's. Function is empty when
	// its code object could not be read.
	Function, File string
	Line           int
}

// A Stack is a decoded stack record, leaf first.
type Stack struct {
	Frames []Frame
	// Truncated is how many frames lack before Frames[TruncatedAt].
	Truncated, TruncatedAt int
	// Err says why the stack lacks outer frames: an Error or ErrFramePointers. It
	// is nil for a complete one, which ends at _start, at a thread's start or,
	// before CPython 3.11, with the outermost Python frame.
	Err error
}

// ErrFramePointers says that a stack is the kernel's frame-pointer walk.
var ErrFramePointers = errors.New("followed frame pointers only")

// An Error is the unwinder's reason to end a stack early.
type Error uint32

func (e Error) Error() string {
	if name, ok := errorNames[e]; ok {
		return "unwind ended early: " + name
	}
	return fmt.Sprintf("unwind ended early: error %d", uint32(e))
}

// Flags of a stack record (bpf/unwind.bpf.c, enum uw_stack_flags), and of a frame in
// it (bpf/unwind_slot.h, enum uw_frame_flags).
const (
	flagFrames = 1
	errorShift = 8

	framePython  = 1
	frameReturn  = 2
	frameGuessed = 4
	frameShift   = 56
)

// leafFrames and rootFrames are how many frames of a stack are kept: the first ones,
// and the last ones in a ring.
const leafFrames, rootFrames = 1024, 512

// Decode names the Python frames of a stack record (struct gm_stack) of so many
// frames, and returns it as frames. Call it as soon as the record comes: the process
// must be there for Python's code objects to be read.
func (u *Unwinder) Decode(pid, flags, frames uint32, words []uint64) Stack {
	if flags&flagFrames == 0 {
		s := Stack{Err: ErrFramePointers}
		for _, w := range words {
			s.Frames = append(s.Frames, Frame{Addr: w, Return: true})
		}
		return s
	}
	var s Stack
	if e := flags >> errorShift; e != 0 {
		s.Err = Error(e)
	}
	const kept = leafFrames + rootFrames
	if uint64(len(words)) != 2*uint64(min(frames, kept)) {
		return Stack{Err: errors.New("malformed stack record")}
	}
	if frames > kept {
		s.Truncated, s.TruncatedAt = int(frames-kept), leafFrames
		words = unroll(words, frames)
	}
	version := sync.OnceValue(func() uint16 { return u.kernel.pythonVersion(pid) })
	u.decode.Lock()
	defer u.decode.Unlock()
	at := s.TruncatedAt
	for i := 0; i < len(words); i += 2 {
		if i == 2*at {
			s.TruncatedAt = len(s.Frames)
		}
		what, address := words[i]>>frameShift, words[i]&(1<<frameShift-1)
		if what&framePython == 0 {
			// The innermost frame is where the probed call has just returned to.
			s.Frames = append(s.Frames, Frame{Addr: address, Return: what&frameReturn != 0 || i == 0, Guessed: what&frameGuessed != 0})
		} else if f, ok := u.python(pid, version(), address, words[i+1]); ok {
			s.Frames = append(s.Frames, f)
		}
	}
	return s
}

// python returns a Python frame by its code object, and where in it the frame is: the
// last instruction in the upper half, the unwinder's hash of the code object in the
// lower. It reports whether it is one to show: CPython has others for itself.
func (u *Unwinder) python(pid uint32, version uint16, object, where uint64) (Frame, bool) {
	f := Frame{Kind: Python}
	c, err := u.codes.at(pid, version, object, uint32(where))
	if err != nil {
		return f, true
	}
	last := int(int32(where >> 32))
	if last < c.traceable && version >= python311 {
		return f, false
	}
	f.Function, f.File = c.function, c.file
	if f.Line, err = c.line(version, last); err != nil {
		f.Line = c.lines.first
	}
	return f, true
}

// unroll puts the root's frames, which the kernel side keeps in a ring, in order.
func unroll(words []uint64, frames uint32) []uint64 {
	leaf, root := words[:2*leafFrames], words[2*leafFrames:]
	next := 2 * ((frames - leafFrames) % rootFrames)
	return slices.Concat(leaf, root[next:], root[:next])
}
