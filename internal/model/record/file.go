package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// The file of records. Numbers of fixed size are little-endian, all
// others varints (encoding/binary), zigzag where they have a sign.
//
//	file   = header block*                    written from front to back, or
//	         header region[regions]           a ring of regions of equal size
//	region = block*                           bytes after the last one have no meaning
//	header = magic[8] version:u32 regions:u32 regionSize:u64 salt:u32 crc:u32
//	block  = magic[4] headerCRC:u32 payloadCRC:u32 length:u32 sequence:u64
//	         first:u64 last:u64 records:u32 flags:u32 lost:u64 payload[length]
//
// Checksums are CRC-32C. That of the file's header covers the fields before it. That of a
// block's header covers the fields after it, and begins with the salt, which is random: no
// text in a payload passes for a block.
// Sequence numbers of blocks count from 0 without holes, over all regions.
// First and last are the earliest and the latest time in the block, 0 for none;
// lost is how many records are missing between the block before and this one.
//
// A payload, which zstd compresses, is a run of entries; each begins with a number that
// says what it is (types.go). A block decodes by itself. Only ids go from block to block:
// those of stacks, places and processes. A place is defined before the first entry that
// refers to it, and again after a Cut or a loss.
//
// In a ring, each region but the very first begins with a keyframe: blocks that
// hold a Cut and what rebuilds the state. Regions are ordered by the sequence
// number of their first block, and a region ends before the first block that
// does not follow the one before it.
const (
	fileMagic      = "\x89gpumtr\n"
	fileVersion    = 14
	oldestVersion  = 13 // that is read
	fileHeaderSize = 32

	blockMagic      = "\xf5gmb"
	blockHeaderSize = 56
	// maxPayload bounds a block: a reader accepts no larger one, and a record
	// that does not fit in one is not written.
	maxPayload = 256 << 10
	// maxPacked bounds a payload that compression made larger.
	maxPacked = maxPayload + 2<<10
	// A small file is not to cost much: for each byte in the file there are at most maxRatio
	// bytes of payload, and for each record at least minRecord bytes. Blocks that compress
	// better are filled up.
	maxRatio  = 8
	minRecord = 4
	// What the frames of all stacks name has at most someText bytes, and textRatio bytes for each
	// byte of the file: many stacks may have a frame with a long name. A frame counts for
	// frameBytes more, and each of its lines for lineBytes. Beyond that outer frames are left out.
	// The recordings of real runs have 36 bytes for each byte of the file, and 5 MB, at most.
	someText   = 128 << 20
	textRatio  = 128
	frameBytes = 64
	lineBytes  = 16
)

// Flags of a block.
const (
	flagKeyframe = 1 << iota // it is part of a keyframe
	flagCut                  // it begins with a Cut, and a keyframe
	flagBare                 // nothing of the keyframe follows the Cut: it was too large
	flagEnd                  // it is the last: the recording was closed
)

// Limits of a record's contents, the same for writer and reader.
const (
	maxString = 64 << 10 // bytes; longer ones are cut
	maxFrames = 4096     // of a stack
	// maxStackModules bounds the modules of a stack. The kernel side finds 32 at most.
	maxStackModules = 1 << 8

	// Places that are not defined again when they come up again have one of
	// the placeWindow newest ids.
	placeWindow = 16 << 20

	maxRegions = 64
)

// Reasons why a file cannot be read.
var (
	ErrNotRecording = errors.New("not a recording")
	ErrVersion      = errors.New("a recording of another version of gpumemtrace")
	ErrMalformed    = errors.New("the recording is damaged")
	ErrCutShort     = errors.New("the recording was cut short")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// IsRecording reports whether a file that begins with header, of which 8 bytes
// are enough, is a recording of any version.
func IsRecording(header []byte) bool {
	return len(header) >= len(fileMagic) && string(header[:len(fileMagic)]) == fileMagic
}

// A layout says where in the file blocks lie. Without regions they follow the
// header.
type layout struct {
	regions    int
	regionSize int64
	salt       uint32
}

// start returns the offset of a region.
func (l layout) start(region int) int64 {
	return fileHeaderSize + int64(region)*l.regionSize
}

func (l layout) header() []byte {
	b := make([]byte, fileHeaderSize)
	copy(b, fileMagic)
	binary.LittleEndian.PutUint32(b[8:], fileVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(l.regions))
	binary.LittleEndian.PutUint64(b[16:], uint64(l.regionSize))
	binary.LittleEndian.PutUint32(b[24:], l.salt)
	binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
	return b
}

// parseHeader reads a file's first bytes, fewer than fileHeaderSize of them if
// the file is as short.
func parseHeader(b []byte) (layout, error) {
	if !IsRecording(b) {
		return layout{}, fmt.Errorf("%w but %s: give a file that --record wrote, or a memory snapshot of PyTorch", ErrNotRecording, userfile.Sort(b))
	}
	if len(b) >= 12 {
		if v := binary.LittleEndian.Uint32(b[8:]); v < oldestVersion || v > fileVersion {
			return layout{}, fmt.Errorf("%w (it has version %d, this one reads %d to %d)", ErrVersion, v, oldestVersion, fileVersion)
		}
	}
	if len(b) < fileHeaderSize {
		return layout{}, fmt.Errorf("%w: it ends within its header", ErrCutShort)
	}
	if crc32.Checksum(b[:28], castagnoli) != binary.LittleEndian.Uint32(b[28:]) {
		return layout{}, fmt.Errorf("%w: its header's checksum is wrong", ErrMalformed)
	}
	regions, size := binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint64(b[16:])
	if regions > maxRegions || regions > 0 && (size < blockHeaderSize || size > 1<<56) {
		return layout{}, fmt.Errorf("%w: %d regions of %d bytes", ErrMalformed, regions, size)
	}
	return layout{int(regions), int64(size), binary.LittleEndian.Uint32(b[24:])}, nil
}
