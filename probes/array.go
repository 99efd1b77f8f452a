package probes

import "math/bits"

// Flags of cuArray3DCreate (cuda.h, CUDA_ARRAY3D_*).
const (
	arrayLayered  = 0x01
	arrayCubemap  = 0x04 // six faces deep
	arraySparse   = 0x40 // memory comes by cuMemMapArrayAsync
	arrayDeferred = 0x80 // likewise
)

// formatBytes is the size of one element of a CUarray_format. The first group
// is per channel; in the second the format names all channels of a texel.
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

// arrayBytes returns what an array's description asks for. The driver pads it
// in ways it does not tell.
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

// mipBytes adds up levels of which each halves every extent, except the layer
// count of a layered array. There are no more than make all of them 1, and one
// at least (cuMipmappedArrayCreate's documentation).
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
