package unwind

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/support"
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
	// Function, File and Line are a Python frame's. Line is 0 for code that belongs
	// to none. When Function cannot be known it is empty and Reason says why, for
	// people.
	Function, File string
	Line           int
	Reason         string
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
	// Modules are the addresses of the modules of PyTorch that were called, innermost first,
	// with Options.Modules.
	Modules []uint64
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
	frameLate    = 8
	frameModule  = 16
	frameShift   = 56
)

// leafFrames and rootFrames are how many frames of a stack are recorded: the first ones,
// and the last ones in a ring.
const leafFrames, rootFrames = 1024, 512

// Decode returns a stack record (struct gm_stack) as frames, and names its Python frames.
// Call it as soon as the record comes: code objects are read from the running process.
func (u *Unwinder) Decode(pid, flags, frames uint32, words []uint64) Stack {
	s, python := decode(flags, frames, words)
	if len(python) > 0 {
		named := u.kernel.namePython(pid, python)
		s.Modules = modules(python, named)
		if u.opts.Modules {
			u.findModuleCall(pid, python, named)
		}
		u.unnamed.Add(s.name(named))
	}
	return s
}

// decode returns a record's stack, and the code objects of its Python frames, in order.
func decode(flags, frames uint32, words []uint64) (s Stack, python []pythonFrame) {
	if flags&flagFrames == 0 {
		s.Err = ErrFramePointers
		for _, w := range words {
			s.Frames = append(s.Frames, Frame{Addr: w, Return: true})
		}
		return s, nil
	}
	if e := flags >> errorShift; e != 0 {
		s.Err = Error(e)
	}
	const kept = leafFrames + rootFrames
	if uint64(len(words)) != 2*uint64(min(frames, kept)) {
		return Stack{Err: errors.New("malformed stack record")}, nil
	}
	cut := -1
	if frames > kept {
		s.Truncated, cut = int(frames-kept), 2*leafFrames
		words = unroll(words, frames)
	}
	// Late Python frames are at the end of the record. They belong after the last other
	// Python frame that is not lost.
	late, behind := 0, -1
	var module uint64 // of the frame that comes next
	for i := 0; i < len(words); i += 2 {
		if i == cut {
			s.TruncatedAt = len(s.Frames)
			if late == 0 {
				behind = len(s.Frames)
			}
			module = 0
		}
		what, address := words[i]>>frameShift, words[i]&(1<<frameShift-1)
		if what&frameModule != 0 {
			module = address
			continue
		}
		if what&framePython != 0 {
			s.Frames = append(s.Frames, Frame{Kind: Python})
			python = append(python, pythonFrame{codeID{address, uint32(words[i+1])}, int32(words[i+1] >> 32), module})
			module = 0
		} else {
			// The innermost frame is where the probed call has just returned to.
			s.Frames = append(s.Frames, Frame{Addr: address, Return: what&frameReturn != 0 || i == 0, Guessed: what&frameGuessed != 0})
		}
		switch what & (framePython | frameLate) {
		case framePython | frameLate:
			late++
		case framePython:
			late, behind = 0, len(s.Frames)
		default:
			late = 0
		}
	}
	if late > 0 && behind >= 0 {
		n := len(s.Frames) - late
		s.Frames = slices.Concat(s.Frames[:behind], s.Frames[n:], s.Frames[behind:n])
		if s.TruncatedAt > behind { // late frames are lost
			s.TruncatedAt -= n - behind
		}
	}
	return s, python
}

// unroll puts the root's frames, which the kernel side has in a ring, in order.
func unroll(words []uint64, frames uint32) []uint64 {
	leaf, root := words[:2*leafFrames], words[2*leafFrames:]
	next := 2 * ((frames - leafFrames) % rootFrames)
	return slices.Concat(leaf, root[next:], root[:next])
}

// name sets the names of the Python frames of s, in order, and drops those that Python
// does not show. It returns how many have no name.
func (s *Stack) name(named []namedFrame) (unnamed uint64) {
	kept := s.Frames[:0]
	cut := s.TruncatedAt
	for i, f := range s.Frames {
		if i == cut {
			s.TruncatedAt = len(kept)
		}
		if f.Kind == Python {
			n := named[0]
			named = named[1:]
			if n.hidden {
				continue
			}
			if f = n.Frame; f.Function == "" {
				unnamed++
			}
		}
		kept = append(kept, f)
	}
	s.Frames = kept
	return unnamed
}

// namePython names Python frames.
func (k *kernel) namePython(pid uint32, frames []pythonFrame) []namedFrame {
	var info support.PyProcInfo
	if k.maps["py_procs"].Lookup(pid, unsafe.Pointer(&info)) == nil {
		if layout, ok := layoutOf(&info); ok {
			return nameFrames(processMemory(pid), layout, textsOf(k.maps["unwind_texts"], pid), frames)
		}
	}
	named := make([]namedFrame, len(frames))
	for i := range named {
		named[i].Frame = unnamed(errCodeUnknown)
	}
	return named
}
