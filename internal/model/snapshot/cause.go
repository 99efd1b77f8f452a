package snapshot

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// Causes by name. The others are the names of lines of accounts, without the brackets.
const (
	Allocations = "allocations"
	Pool        = "pool"
)

// Cause returns the cause of a sample's memory: the program's allocations, or the name that
// the leaf has, if the driver uses the memory itself. For memory that is on no GPU it is the
// kind.
func Cause(s *Sample) string {
	switch class := Class(s.Kind); {
	case class == event.ClassDevice.String():
		return Allocations
	case class == event.ClassDriver.String() || s.Kind == event.KindSystem.String():
		if len(s.Stack) > 0 {
			if name, ok := bracketed(s.Stack[0]); ok {
				return name
			}
		}
	}
	return s.Kind
}

// bracketed returns a synthetic frame's name without its brackets.
func bracketed(l *Location) (string, bool) {
	inner, opens := strings.CutPrefix(l.Lines[0].Function, "[")
	inner, closes := strings.CutSuffix(inner, "]")
	return inner, opens && closes
}

var onGPU = []string{event.ClassDevice.String(), event.ClassTensor.String(), event.ClassDriver.String()}

// OnGPU reports whether memory of a kind is part of an account: the program's allocations,
// the tensors that PyTorch's allocator made of some of them, and the driver's own memory.
// Bytes of no other two classes may be added up.
func OnGPU(kind string) bool {
	return slices.Contains(onGPU, Class(kind))
}
