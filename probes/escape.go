package probes

import (
	"hash/maphash"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// An escape is a call of NVIDIA's kernel driver: an ioctl of libcuda on the driver's control device.
// Numbers, structures and classes are those of NVIDIA's open-gpu-kernel-modules: nv_escape.h, nvos.h,
// class/*.h, ctrl0000gpu.h. Argument 2 of the ioctl points to the structure. Argument 6 is a pointer in
// the structure.
type escape struct {
	number uint8
	// at is the offset of the class, command or function in the structure, 0 for none, and
	// is its values for this row.
	at uint8
	is []uint32
	// pointer is the offset of argument 6 in the structure, 0 for none.
	pointer uint16
}

// maxWays is GM_ESCAPE_WAYS.
const maxWays = 10

const (
	escapeFree    = 0x29
	escapeControl = 0x2a
	escapeAlloc   = 0x2b
	escapeDup     = 0x34
	escapeHeap    = 0x4a
	escapeWrapped = 211
)

// allocates returns NV_ESC_RM_ALLOC for objects of the classes.
func allocates(classes ...uint32) *escape {
	return &escape{number: escapeAlloc, at: 12, is: classes, pointer: 16}
}

// controls returns NV_ESC_RM_CONTROL with the commands.
func controls(commands ...uint32) *escape {
	return &escape{number: escapeControl, at: 8, is: commands, pointer: 16}
}

// object returns the values of NV_ESC_RM_ALLOC's structure in both forms: NVOS64_PARAMETERS of 48 bytes,
// and NVOS21_PARAMETERS of 32. The request number has the size.
func object() []value {
	return []value{mem(2, 0), mem(2, 8), arg(1), mem(2, 24), mem32(2, 40)}
}

// kernelTable has the rows of the kernel driver's calls. They have no function of their own: gm_escape
// chooses the row of an ioctl.
var kernelTable = []Row{
	{Symbols: []string{"NV_ESC_RM_ALLOC"}, Level: Kernel, Op: event.OpClient, Escape: allocates(0, 1, 0x41),
		Addr: arg(0), Extra: object(), Fix: fixClient},
	// NV0080_ALLOC_PARAMETERS: deviceId at 0.
	{Symbols: []string{"NV_ESC_RM_ALLOC"}, Level: Kernel, Op: event.OpObjectDevice, Escape: allocates(0x80),
		Addr: mem32(6, 0), Extra: object(), Fix: fixObject},
	{Symbols: []string{"NV_ESC_RM_ALLOC"}, Level: Kernel, Op: event.OpObject, Escape: allocates(0x2080),
		Extra: object(), Fix: fixObject},
	// NVC637_ALLOCATION_PARAMETERS: swizzId at 8.
	{Symbols: []string{"NV_ESC_RM_ALLOC"}, Level: Kernel, Op: event.OpObjectInstance, Escape: allocates(0xc637),
		Addr: mem32(6, 8), Extra: object(), Fix: fixObject},
	// NV01_MEMORY_LOCAL_USER and NV01_MEMORY_SYSTEM: NV_MEMORY_ALLOCATION_PARAMS,
	// size at 64.
	{Symbols: []string{"NV_ESC_RM_ALLOC"}, Level: Kernel, Op: event.OpObjectMemory, Kind: event.KindDriver, Escape: allocates(0x40),
		Size: mem(6, 64), Extra: object(), Fix: fixObject, flags: flagStack | flagBacking},
	{Symbols: []string{"NV_ESC_RM_ALLOC"}, Level: Kernel, Op: event.OpObjectMemory, Kind: event.KindSystem, Escape: allocates(0x3e),
		Size: mem(6, 64), Extra: object(), Fix: fixObject, flags: flagStack | flagBacking},
	// NVOS32_PARAMETERS, NVOS32_FUNCTION_ALLOC_SIZE and FREE. The function's own
	// structure is at 40.
	{Symbols: []string{"NV_ESC_RM_VID_HEAP_CONTROL"}, Level: Kernel, Op: event.OpObjectMemory, Kind: event.KindDriver,
		Escape: &escape{number: escapeHeap, at: 8, is: []uint32{2}}, Size: mem(2, 88),
		Extra: []value{mem(2, 0), mem32(2, 44), mem32(2, 20), mem(2, 52)}, Fix: fixHeapAlloc, flags: flagStack | flagBacking},
	{Symbols: []string{"NV_ESC_RM_VID_HEAP_CONTROL"}, Level: Kernel, Op: event.OpObjectFree,
		Escape: &escape{number: escapeHeap, at: 8, is: []uint32{3}}, Extra: []value{mem(2, 0), mem32(2, 44), mem32(2, 20)}, Fix: fixHeapFree},
	// NVOS00_PARAMETERS: hRoot 0, hObjectOld 8, status 12.
	{Symbols: []string{"NV_ESC_RM_FREE"}, Level: Kernel, Op: event.OpObjectFree, Escape: &escape{number: escapeFree},
		Extra: []value{mem32(2, 0), mem(2, 8)}, Fix: fixObjectFree},
	// NVOS55_PARAMETERS: hClient 0, hParent 4, hObject 8, hClientSrc 12,
	// hObjectSrc 16, status 24.
	{Symbols: []string{"NV_ESC_RM_DUP_OBJECT"}, Level: Kernel, Op: event.OpObjectShare, Kind: event.KindDriver, Escape: &escape{number: escapeDup},
		Extra: []value{mem(2, 0), mem(2, 8), mem(2, 16), mem32(2, 24)}, Fix: fixShare, flags: flagStack},
	// NVOS54_PARAMETERS: hClient 0, params 16, status 28.
	// NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS: hObject 12, fd 16.
	{Symbols: []string{"NV_ESC_RM_CONTROL"}, Level: Kernel, Op: event.OpObjectExport, Escape: controls(0x3d05),
		Addr: mem32(6, 16), Extra: []value{mem32(2, 0), mem32(6, 12), arg(7), mem32(2, 28)}, Fix: fixExport, flags: flagFile},
	// NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS: fd 0, objects 76, numObjects 2124, index 2126.
	{Symbols: []string{"NV_ESC_RM_CONTROL"}, Level: Kernel, Op: event.OpObjectExport, Escape: controls(0x3d0b),
		Addr: mem32(6, 0), Extra: []value{mem32(2, 0), mem32(6, 76), mem32(6, 2124), mem32(2, 28)}, Fix: fixExport, flags: flagFile},
	// NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS: fd 0, hParent 12, hObject 16.
	{Symbols: []string{"NV_ESC_RM_CONTROL"}, Level: Kernel, Op: event.OpObjectImport, Kind: event.KindDriver, Escape: controls(0x3d06),
		Addr: mem32(6, 0), Extra: []value{mem32(2, 0), mem32(6, 12), mem32(6, 16), arg(7), mem32(2, 28)}, Fix: fixImport, flags: flagFile | flagStack},
	// NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS: fd 0, hParent 4, objects 8, numObjects 648, index 650.
	{Symbols: []string{"NV_ESC_RM_CONTROL"}, Level: Kernel, Op: event.OpObjectImport, Kind: event.KindDriver, Escape: controls(0x3d0c),
		Addr: mem32(6, 0), Extra: []value{mem32(2, 0), mem32(6, 4), mem32(6, 8), mem32(6, 648), mem32(2, 28)}, Fix: fixImport, flags: flagFile | flagStack},
	// NV0000_CTRL_GPU_GET_ID_INFO_PARAMS
	// and its second version: gpuId 0, deviceInstance 8.
	{Symbols: []string{"NV_ESC_RM_CONTROL"}, Level: Kernel, Op: event.OpGPU,
		Escape: controls(0x202, 0x205), Addr: mem32(6, 8), Extra: []value{mem32(6, 0), mem32(2, 28)}, Fix: fixGPU},
}

// kernelEscape mirrors gm_escape.
type kernelEscape struct {
	At  uint16
	Row [maxWays]uint16
	_   uint16
	Is  [maxWays]uint32
}

// kernelEscapes returns the kernel driver's calls by number, in the form of the kernel side.
func kernelEscapes() map[uint8]*kernelEscape {
	out := map[uint8]*kernelEscape{}
	for i, entry := range Entries {
		e := entry.Escape
		if e == nil {
			continue
		}
		k := out[e.number]
		if k == nil {
			k = &kernelEscape{At: uint16(e.at)}
			out[e.number] = k
		}
		ways := e.is
		if ways == nil {
			ways = []uint32{0}
		}
		for _, is := range ways {
			free := slices.Index(k.Row[:], 0)
			k.Row[free], k.Is[free] = uint16(i), is
		}
	}
	return out
}

// requests reports whether an ioctl with a request number may be a call in the table, as gm_escape does.
func requests(number uint32) bool {
	nr, kind := uint8(number), uint8(number>>8)
	asked := nr == escapeWrapped || slices.ContainsFunc(kernelTable, func(r Row) bool { return r.Escape.number == nr })
	return kind == 'F' && asked
}

// name returns the name of an object: its client's number and its own.
func name(client, object uint64) uint64 { return client<<32 | object&0xffffffff }

// status sets the result by the kernel driver's status code (nvstatuscodes.h): a call may fail although
// the ioctl succeeds.
func status(e *event.Event, code uint32) {
	const noMemory = 0x51 // NV_ERR_NO_MEMORY
	switch {
	case e.Result != event.Success:
	case code == noMemory:
		e.Result = event.OutOfMemory
	default:
		e.Result = int32(code)
	}
}

// fixObject reads the values of object.
func fixObject(e *event.Event, x []uint64) {
	root, parent, own := x[0]&0xffffffff, x[0]>>32, x[1]&0xffffffff
	e.Handle, e.Part = name(root, own), name(root, parent)
	const shorter = 32 // bytes of NVOS21_PARAMETERS
	if request := uint32(x[2]); request>>16&0x3fff == shorter {
		status(e, uint32(x[3]>>32))
	} else {
		status(e, uint32(x[4]))
	}
}

// fixClient reads a client, which is its own root.
func fixClient(e *event.Event, x []uint64) {
	fixObject(e, x)
	own := x[1] & 0xffffffff
	e.Handle, e.Part = name(own, own), 0
}

func fixHeapAlloc(e *event.Event, x []uint64) {
	const (
		virtual  = 0x80000 // NVOS32_ALLOC_FLAGS_VIRTUAL: addresses, no memory
		location = 3 << 25 // NVOS32_ATTR_LOCATION: 0 is the GPU's memory
	)
	e.Handle, e.Part = name(x[0]&0xffffffff, x[1]), name(x[0]&0xffffffff, x[0]>>32)
	status(e, uint32(x[2]))
	switch flags, attributes := uint32(x[3]), uint32(x[3]>>32); {
	case flags&virtual != 0:
		e.Op, e.Kind, e.Size = event.OpObject, event.KindNone, 0
	case attributes&location != 0:
		e.Kind = event.KindSystem
	}
}

func fixHeapFree(e *event.Event, x []uint64) {
	e.Handle = name(x[0]&0xffffffff, x[1])
	status(e, uint32(x[2]))
}

func fixObjectFree(e *event.Event, x []uint64) {
	e.Handle = name(x[0], x[1])
	status(e, uint32(x[1]>>32))
}

func fixShare(e *event.Event, x []uint64) {
	client, parent := x[0]&0xffffffff, x[0]>>32
	e.Handle, e.Part, e.Addr = name(client, x[1]), name(client, parent), name(x[1]>>32, x[2])
	status(e, uint32(x[3]))
}

func fixGPU(e *event.Event, x []uint64) {
	e.Part = x[0]
	status(e, uint32(x[1]))
}

var fileSeed = maphash.MakeSeed()

// filePlace returns the number of a place in an open file, 0 for no file. The file's address in the kernel is no
// user's business.
func filePlace(file, index uint64) uint64 {
	if file == 0 {
		return 0
	}
	return maphash.Comparable(fileSeed, [2]uint64{file, index})
}

func fixExport(e *event.Event, x []uint64) {
	e.Handle, e.Addr, e.Size = filePlace(e.Addr, x[2]>>16), name(x[0], x[1]), x[2]&0xffff
	status(e, uint32(x[3]))
}

func fixImport(e *event.Event, x []uint64) {
	e.Handle, e.Part, e.Addr, e.Size = name(x[0], x[2]), name(x[0], x[1]), filePlace(e.Addr, x[3]>>16), x[3]&0xffff
	status(e, uint32(x[4]))
}
