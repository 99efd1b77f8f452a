package probes

import (
	"cmp"
	"math/bits"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// mul multiplies sizes from a traced process. The product is at most the largest int64.
func mul(a uint64, factors ...uint64) uint64 {
	const most = 1<<63 - 1
	for _, f := range factors {
		hi, lo := bits.Mul64(a, f)
		if hi != 0 || lo > most {
			return most
		}
		a = lo
	}
	return a
}

func fixSize32(e *event.Event, x []uint64) { e.Size = uint64(uint32(x[0])) }
func fixAddr32(e *event.Event, x []uint64) { e.Addr = uint64(uint32(x[0])) }

// Pitched memory has the pitch that the driver chose. A failed call has none, and counts by the width. x
// is the pitch, the width, the height, and the depth.
func fixPitch(e *event.Event, x []uint64) { e.Size = mul(cmp.Or(x[0], x[1]), x[2]) }
func fixPitch32(e *event.Event, x []uint64) {
	e.Size = mul(cmp.Or(x[0], uint64(uint32(x[1]))), uint64(uint32(x[2])))
}
func fixPitch3D(e *event.Event, x []uint64) {
	e.Size = mul(cmp.Or(x[0], x[1]), max(x[2], 1), max(x[3], 1))
}

// fixLocation reads a CUmemLocation: the type in the low half (1 is a device, 2 to 4 are the host and its
// NUMA nodes), the id in the high one.
func fixLocation(e *event.Event, x []uint64) {
	const device = 1
	switch kind := uint32(x[0]); {
	case kind == device:
		e.Device = int32(x[0] >> 32)
	case e.Kind == event.KindVMM:
		e.Kind, e.Device = event.KindVMMHost, event.NoDevice
	}
}

// fixPool reads where a pool is: x is a CUmemAllocationType, of which 2 is managed memory, and a
// CUmemLocation. It has neither where the call names a device.
func fixPool(e *event.Event, x []uint64) {
	const managed, device = 2, 1
	if len(x) == 0 {
		return
	}
	switch place := uint32(x[1]); {
	case uint32(x[0]) == managed:
		e.Kind, e.Device = event.KindAsyncManaged, event.NoDevice
	case place == device:
		e.Device = int32(x[1] >> 32)
	case place != 0:
		e.Kind, e.Device = event.KindAsyncHost, event.NoDevice
	}
}

// fixPart sets what a context's event says in Part.
func fixPart(part uint64) func(*event.Event, []uint64) {
	return func(e *event.Event, _ []uint64) { e.Part = part }
}

func fixDefaultPool(e *event.Event, x []uint64) {
	fixPool(e, x)
	e.Part = event.PoolDefault
}

func fixCurrentPool(e *event.Event, x []uint64) {
	fixPool(e, x)
	e.Part = event.PoolCurrent
}

// fixGraphNode sets the operation of a new node by the node's type
// (cuda.h, enum CUgraphNodeType). x is the type, and two words: a free node's
// address, a child graph and its ownership, or an allocation's properties.
func fixGraphNode(e *event.Event, x []uint64) {
	const (
		child, alloc, free = 4, 10, 11
		moved              = 1 // CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE; else it is a copy without memory nodes
	)
	switch {
	case x[0] == alloc:
		fixLocation(e, x[2:])
		return
	case x[0] == free:
		e.Op, e.Addr, e.Handle = event.OpFree, x[1], 0
	case x[0] == child && uint32(x[2]) == moved:
		e.Op, e.Addr, e.Part = event.OpGraphMove, 0, x[1]
	default:
		e.Op, e.Addr, e.Handle = event.OpNone, 0, 0
	}
	e.Kind, e.Size = event.KindNone, 0
}

func fixMapArray(e *event.Event, x []uint64) {
	const unmap = 2 // CU_MEM_OPERATION_TYPE_UNMAP
	if uint32(x[0]) == unmap {
		e.Op = event.OpUnmapArray
	}
	// The name of a tile: level and layer, offsets x and y, offset z.
	part := x[1]
	for _, w := range []uint64{x[2], uint64(uint32(x[3]))} {
		part = (part ^ bits.RotateLeft64(w, 29)) * 0x9e3779b97f4a7c15
	}
	e.Part = part
}

func fixArray2D(e *event.Event, x []uint64) {
	e.Size = arrayBytes(x[0], x[1], 0, uint32(x[2]), uint32(x[2]>>32), 0, 1)
}

// mipLevels returns the sixth value, which only the row of a mipmapped array has.
func mipLevels(x []uint64) uint64 {
	if len(x) > 5 {
		return uint64(uint32(x[5]))
	}
	return 1
}

func fixArray3D(e *event.Event, x []uint64) {
	e.Size = arrayBytes(x[0], x[1], x[2], uint32(x[3]), uint32(x[3]>>32), uint32(x[4]), mipLevels(x))
}

// channelBytes returns the size of a texel, which the runtime describes by the bits of four channels.
func channelBytes(xy, zw uint64) uint64 {
	bits := uint64(uint32(xy)) + xy>>32 + uint64(uint32(zw)) + zw>>32
	return bits / 8
}

func fixChannels2D(e *event.Event, x []uint64) {
	e.Size = mul(channelBytes(x[0], x[1]), x[2], max(x[3], 1))
}

func fixChannels3D(e *event.Event, x []uint64) {
	e.Size = mipBytes(x[2], x[3], x[4], mipLevels(x), false, func(w, h uint64) uint64 {
		return mul(channelBytes(x[0], x[1]), w, h)
	})
}

func fixTorchOutOfMemory(e *event.Event, x []uint64) {
	e.Result = event.Success // the function returns nothing
	e.Part, e.Device = x[0], torchDevice(x[1])
}

// fixPrivatePool reads the second half of the pool's id, and a c10::DeviceIndex.
func fixPrivatePool(e *event.Event, x []uint64) { e.Part, e.Device = x[0], int32(int8(x[1])) }

// fixCaptureMode reads a CUstreamCaptureMode, of which 0 is global.
func fixCaptureMode(e *event.Event, x []uint64) {
	if uint32(x[0]) == 0 {
		e.Part = 1
	}
}

// fixTensor distinguishes an allocation from a free by the sign of the size. The older function has no
// totals.
func fixTensor(e *event.Event, x []uint64) {
	if size := int64(x[0]); size >= 0 {
		e.Size = x[0]
	} else {
		e.Op, e.Kind, e.Size = event.OpTensorFree, event.KindNone, uint64(-size)
	}
	e.Device = torchDevice(x[1])
	if e.Part = event.NoTotal; len(x) > 2 {
		e.Part = x[2]
	} else {
		e.Handle = event.NoTotal
	}
}

// torchDevice returns the index of a c10::Device, which is two bytes: the type (1 is
// CUDA) and the index.
func torchDevice(device uint64) int32 {
	if device&0xff == 1 && int8(device>>8) >= 0 {
		return int32(device >> 8 & 0x7f)
	}
	return event.NoDevice
}

// Flags of cuArray3DCreate (cuda.h, CUDA_ARRAY3D_*).
const (
	arrayLayered  = 0x01
	arrayCubemap  = 0x04 // six faces deep
	arraySparse   = 0x40 // memory comes by cuMemMapArrayAsync
	arrayDeferred = 0x80 // memory comes later too
)

// formatBytes has the size of one channel by CUarray_format, texelBytes the size of a texel for formats
// that name all channels.
var formatBytes = map[uint32]uint64{
	0x01: 1, 0x02: 2, 0x03: 4, // UNSIGNED_INT8, 16, 32
	0x08: 1, 0x09: 2, 0x0a: 4, // SIGNED_INT8, 16, 32
	0x10: 2, 0x20: 4, // HALF, FLOAT
}

var texelBytes = map[uint32]uint64{
	0xc0: 1, 0xc1: 2, 0xc2: 4, // UNORM_INT8X1, X2, X4
	0xc3: 2, 0xc4: 4, 0xc5: 8, // UNORM_INT16X1, X2, X4
	0xc6: 1, 0xc7: 2, 0xc8: 4, // SNORM_INT8
	0xc9: 2, 0xca: 4, 0xcb: 8, // SNORM_INT16
}

// blockBytes is the size of a 4x4 block of a BC compressed format.
func blockBytes(format uint32) uint64 {
	switch {
	case format == 0x91 || format == 0x92 || format == 0x97 || format == 0x98: // BC1, BC4
		return 8
	case format >= 0x93 && format <= 0x9e: // BC2, BC3, BC5, BC6H, BC7
		return 16
	}
	return 0
}

const formatNV12 = 0xb0 // a full plane of luma and half a plane of chroma

// arrayBytes returns the bytes that an array's description asks for. The driver adds an unknown padding.
func arrayBytes(width, height, depth uint64, format, channels, flags uint32, levels uint64) uint64 {
	if flags&(arraySparse|arrayDeferred) != 0 {
		return 0
	}
	plane := func(w, h uint64) uint64 {
		if b := blockBytes(format); b != 0 {
			return mul(b, (w+3)/4, (h+3)/4)
		}
		if format == formatNV12 {
			return mul(w, h) / 2 * 3
		}
		if b := texelBytes[format]; b != 0 {
			return mul(b, w, h)
		}
		return mul(max(formatBytes[format], 1), uint64(max(channels, 1)), w, h)
	}
	return mipBytes(width, height, depth, levels, flags&(arrayLayered|arrayCubemap) != 0, plane)
}

// mipBytes adds up the levels. Each level halves every extent, except the layer count of a layered array.
// There is at least one level, and none after all extents are 1 (cuMipmappedArrayCreate's documentation).
func mipBytes(width, height, depth, levels uint64, layered bool, plane func(w, h uint64) uint64) uint64 {
	longest := max(width, height, 1)
	if !layered {
		longest = max(longest, depth)
	}
	var sum uint64
	for level := range min(max(levels, 1), uint64(bits.Len64(longest))) {
		d := max(depth, 1)
		if !layered {
			d = max(depth>>level, 1)
		}
		sum += mul(plane(max(width>>level, 1), max(height>>level, 1)), d)
		if sum >= 1<<63 {
			return 1<<63 - 1
		}
	}
	return sum
}
