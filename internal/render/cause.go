package render

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Causes that outputs know of. The others are what accounts call their lines, less
// the brackets.
const (
	Allocations = "allocations"
	Pool        = "pool"
)

// Cause says what a sample's memory is for: the program's allocations, or what the
// leaf names, if the driver took it for itself. Memory that is not part of what the
// process holds on a GPU is for what its kind says.
func Cause(s *snapshot.Sample) string {
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

// bracketed returns what stands in the brackets of a synthetic frame's name.
func bracketed(l *snapshot.Location) (string, bool) {
	inner, opens := strings.CutPrefix(l.Lines[0].Function, "[")
	inner, closes := strings.CutSuffix(inner, "]")
	return inner, opens && closes
}

var onGPU = []string{event.ClassDevice.String(), event.ClassTensor.String(), event.ClassDriver.String()}

// OnGPU tells whether memory of a kind is part of what its process holds on a GPU,
// which an account adds up: the program's allocations, what PyTorch's allocator made of
// some of them, and what the driver took beside them. Bytes of no other two classes may
// be added up.
func OnGPU(kind string) bool {
	return slices.Contains(onGPU, Class(kind))
}
