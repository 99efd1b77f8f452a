package unwind

import (
	"errors"
	"fmt"

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
	// Function, File and Line are a Python frame's. Function is empty when
	// its code object could not be read.
	Function, File string
	Line           int
}

// A Stack is a decoded stack record, leaf first.
type Stack struct {
	Frames []Frame
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

// Flags of a stack record (bpf/unwind.bpf.c, enum uw_stack_flags).
const (
	flagFrames = 1
	errorShift = 8
)

// Python's own: from 3.12 on a frame of this name stands between two runs of
// the interpreter.
const trampoline = "<interpreter trampoline>"

// Decode names the Python frames of a stack record (struct gm_stack) and
// returns it as frames. Call it as soon as the record comes: the process must
// be there for Python's code objects to be read.
func (u *Unwinder) Decode(pid uint32, flags uint32, words []uint64) Stack {
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
	var python []uint64
	for len(words) > 0 {
		f := libpf.EbpfFrame(words)
		n := int(f.Length())
		if n == 0 || n > len(words) {
			s.Err = errors.Join(s.Err, errors.New("malformed stack record"))
			break
		}
		switch {
		case f.Flags().Error():
		case f.Type() == libpf.NativeFrame:
			// The innermost frame is where the probed call has just
			// returned to.
			s.Frames = append(s.Frames, Frame{Addr: f.Data(), Return: f.Flags().ReturnAddress() || len(s.Frames) == 0})
		case f.Type() == libpf.PythonFrame && n == 3:
			s.Frames = append(s.Frames, Frame{Kind: Python})
			python = append(python, words[:n]...)
		default:
			s.Err = errors.Join(s.Err, fmt.Errorf("frame of unknown type %d", f.Type()))
		}
		words = words[n:]
	}
	if len(python) > 0 {
		u.namePython(pid, python, &s)
	}
	return s
}

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
	for _, f := range s.Frames {
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
