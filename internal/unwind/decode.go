package unwind

import (
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter/samples"
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

// Python's own: from 3.12 on a frame of this name stands between two runs of
// the interpreter.
const trampoline = "<interpreter trampoline>"

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
	var python []uint64
	for i := 0; i < len(words); i += 2 {
		what, address := words[i]>>frameShift, words[i]&(1<<frameShift-1)
		if what&framePython != 0 {
			s.Frames = append(s.Frames, Frame{Kind: Python})
			python = append(python, pythonFrame, address, words[i+1])
			continue
		}
		// The innermost frame is where the probed call has just returned to.
		s.Frames = append(s.Frames, Frame{Addr: address, Return: what&frameReturn != 0 || i == 0, Guessed: what&frameGuessed != 0})
	}
	if len(python) > 0 {
		u.namePython(pid, python, &s)
	}
	return s
}

// unroll puts the root's frames, which the kernel side keeps in a ring, in order.
func unroll(words []uint64, frames uint32) []uint64 {
	leaf, root := words[:2*leafFrames], words[2*leafFrames:]
	next := 2 * ((frames - leafFrames) % rootFrames)
	return slices.Concat(leaf, root[next:], root[:next])
}

// pythonFrame is the header of a Python frame of three words for the unwinder's Go
// side (support/ebpf/tracemgmt.h, frame_header).
const pythonFrame = uint64(libpf.PythonFrame)<<60 | 4<<56 | 3<<52

// namePython fills in the Python frames of s, in order, from their words.
func (u *Unwinder) namePython(pid uint32, words []uint64, s *Stack) {
	u.decode.Lock()
	defer u.decode.Unlock()
	u.frames = nil
	u.processes.HandleTrace(&libpf.EbpfTrace{
		PID:       libpf.PID(pid),
		FrameData: words,
		NumFrames: uint16(len(words) / 3),
	}, &samples.TypeMetadata{})
	named := u.frames
	version := u.kernel.pythonVersion(pid)
	kept := s.Frames[:0]
	at := s.TruncatedAt
	for i, f := range s.Frames {
		if i == at {
			s.TruncatedAt = len(kept)
		}
		if f.Kind == Python && len(named) > 0 {
			p := named[0].Value()
			named = named[1:]
			f.Function = p.FunctionName.String()
			f.File = p.SourceFile.String()
			f.Line = int(p.SourceLine)
			if version >= python310 && f.Function != "" {
				if line, err := u.lines.line(pid, version, words[1], words[2]); err == nil {
					f.Line = line
				}
			}
			words = words[3:]
			if f.Function == trampoline {
				continue
			}
		}
		kept = append(kept, f)
	}
	s.Frames = kept
}

// reporter takes the frames that HandleTrace names.
type reporter struct{ u *Unwinder }

// ReportTraceEvent implements the unwinder's reporter.TraceReporter.
func (r reporter) ReportTraceEvent(t *libpf.Trace, _ *samples.TraceEventMeta) error {
	r.u.frames = t.Frames
	return nil
}
