package physical

import (
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// causes says what memory is for that the kernel driver hands out inside a
// function of CUDA's driver API, by how the function's name begins. The first
// that fits counts.
var causes = []struct {
	begins string
	kind   event.Kind
}{
	{"cuMemAllocAsync", event.KindPool},
	{"cuMemAllocFromPoolAsync", event.KindPool},
	{"cuMemPoolImport", event.KindOther},
	{"cuMemPool", event.KindPool},
	{"cuMemAlloc", event.KindBacking},
	{"cuMemHostAlloc", event.KindBacking},
	{"cuMemHostRegister", event.KindBacking},
	{"cuMemCreate", event.KindBacking},
	{"cuArrayCreate", event.KindBacking},
	{"cuArray3DCreate", event.KindBacking},
	{"cuMipmappedArrayCreate", event.KindBacking},

	{"cuInit", event.KindContext},
	{"cuCtxCreate", event.KindContext},
	{"cuCtxSetLimit", event.KindLocal},
	{"cuDevicePrimaryCtxRetain", event.KindContext},
	{"cuGreenCtxCreate", event.KindContext},

	{"cuModuleUnload", event.KindOther},
	{"cuLibraryUnload", event.KindOther},
	{"cuModule", event.KindCode},
	{"cuLibrary", event.KindCode},
	{"cuKernel", event.KindCode},
	{"cuFunc", event.KindCode},
	{"cuLink", event.KindCode},
	{"cuLaunch", event.KindCode},
	{"cuOccupancy", event.KindCode},

	{"cuStreamCreate", event.KindStream},
	{"cuGreenCtxStreamCreate", event.KindStream},
	{"cuEventCreate", event.KindEvent},

	{"cuGraphExecDestroy", event.KindOther},
	{"cuGraphDestroy", event.KindOther},
	{"cuGraph", event.KindGraphExec},
}

// Cause returns what memory is for that the kernel driver hands out inside a
// function of CUDA's driver API: KindOther where the name does not tell,
// KindDriver for no name.
func Cause(function string) event.Kind {
	if function == "" {
		return event.KindDriver
	}
	for _, c := range causes {
		if strings.HasPrefix(function, c.begins) {
			return c.kind
		}
	}
	return event.KindOther
}
