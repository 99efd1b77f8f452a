package physical

import (
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A cause is what memory is for that the kernel driver hands out inside a
// function of CUDA's driver API, or else a library, whose name begins so.
type cause struct {
	begins string
	kind   event.Kind
	placed bool // the allocation that the function makes is on the same device
}

// causes are in order: the first that fits counts.
var causes = []cause{
	{"cuMemAllocAsync", event.KindPool, true},
	{"cuMemAllocFromPoolAsync", event.KindPool, true},
	{"cuMemPoolImport", event.KindOther, false},
	{"cuMemPool", event.KindPool, false},
	{"cuMemAllocHost", event.KindBacking, false},
	{"cuMemAllocManaged", event.KindBacking, false},
	{"cuMemAlloc", event.KindBacking, true},
	{"cuMemHostAlloc", event.KindBacking, false},
	{"cuMemHostRegister", event.KindBacking, false},
	{"cuMemCreate", event.KindBacking, true},
	{"cuArrayCreate", event.KindBacking, true},
	{"cuArray3DCreate", event.KindBacking, true},
	{"cuMipmappedArrayCreate", event.KindBacking, true},

	{"cuInit", event.KindContext, false},
	{"cuCtxCreate", event.KindContext, false},
	{"cuGLCtxCreate", event.KindContext, false},
	{"cuVDPAUCtxCreate", event.KindContext, false},
	{"cuCtxSetLimit", event.KindLocal, false},
	{"cuDevicePrimaryCtxRetain", event.KindContext, false},
	{"cuGreenCtxCreate", event.KindContext, false},

	{"cuModuleUnload", event.KindOther, false},
	{"cuLibraryUnload", event.KindOther, false},
	{"cuModule", event.KindCode, false},
	{"cuLibrary", event.KindCode, false},
	{"cuKernel", event.KindCode, false},
	{"cuFunc", event.KindCode, false},
	{"cuLink", event.KindCode, false},
	{"cuLaunch", event.KindCode, false},
	{"cuOccupancy", event.KindCode, false},

	{"cuStreamCreate", event.KindStream, false},
	{"cuGreenCtxStreamCreate", event.KindStream, false},
	{"cuEventCreate", event.KindEvent, false},

	{"cuGraphics", event.KindGraphics, false},
	{"cuGL", event.KindGraphics, false},
	{"cuEGL", event.KindGraphics, false},
	{"cuVDPAU", event.KindGraphics, false},

	{"cuGraphExecDestroy", event.KindOther, false},
	{"cuGraphDestroy", event.KindOther, false},
	{"cuGraph", event.KindGraphExec, false},

	// Libraries of NVIDIA's driver whose functions have no names.
	{"libnvcuvid", event.KindVideo, false},
	{"libnvidia-encode", event.KindVideo, false},
	{"libnvidia-opticalflow", event.KindVideo, false},
	{"libvdpau", event.KindVideo, false},
	{"libnvidia-opencl", event.KindOpenCL, false},
	{"libnvidia-", event.KindGraphics, false},
	{"libnvoptix", event.KindGraphics, false},
	{"libEGL", event.KindGraphics, false},
	{"libGLX", event.KindGraphics, false},
}

// causeOf returns the first cause that fits a name; see Cause.
func causeOf(function string) cause {
	if function == "" {
		return cause{kind: event.KindDriver}
	}
	for _, c := range causes {
		if strings.HasPrefix(function, c.begins) {
			return c
		}
	}
	return cause{kind: event.KindOther}
}

// Cause returns what memory is for that the kernel driver hands out inside a
// function of CUDA's driver API, or else a library: KindOther where the name does
// not tell, KindDriver for no name.
func Cause(function string) event.Kind { return causeOf(function).kind }
