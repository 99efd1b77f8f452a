package record

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// A blockHeader describes the payload of a block. Its fields are those of the file, in order.
type blockHeader struct {
	PayloadCRC  uint32 // of the compressed payload
	Length      uint32 // of the compressed payload, in bytes
	Sequence    uint64
	First, Last uint64 // nanoseconds of CLOCK_MONOTONIC
	Records     uint32
	Flags       uint32
	Lost        uint64
}

// put writes h to the first blockHeaderSize bytes of b.
func (h *blockHeader) put(b []byte, salt uint32) {
	copy(b, blockMagic)
	if _, err := binary.Encode(b[8:blockHeaderSize], binary.LittleEndian, h); err != nil {
		panic(err) // its size is blockHeaderSize
	}
	binary.LittleEndian.PutUint32(b[4:], crc32.Update(salt, castagnoli, b[8:blockHeaderSize]))
}

// parseBlock reads a block's header. ok is false for anything else.
func parseBlock(b []byte, salt uint32) (h blockHeader, ok bool) {
	if len(b) < blockHeaderSize || string(b[:4]) != blockMagic {
		return h, false
	}
	if crc32.Update(salt, castagnoli, b[8:blockHeaderSize]) != binary.LittleEndian.Uint32(b[4:]) {
		return h, false
	}
	_, err := binary.Decode(b[8:], binary.LittleEndian, &h)
	return h, err == nil && h.Length <= maxPacked
}

// A block is one being filled or on its way to the file.
type block struct {
	blockHeader
	buf    []byte        // the payload
	packed []byte        // room for the header, then the compressed payload; nil until pack
	room   *atomic.Int64 // that is left in the region of the block, nil if it does not count
}

// A packer compresses payloads. It is safe for concurrent use.
type packer struct{ *zstd.Encoder }

func newPacker() packer {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(maxPayload))
	if err != nil {
		panic(err) // the options are right
	}
	return packer{e}
}

// pack compresses the payload of b, into the memory of out if that is enough.
func (p packer) pack(b *block, out []byte) {
	out = p.EncodeAll(b.buf, append(out[:0], make([]byte, blockHeaderSize)...))
	least := blockHeaderSize + max((len(b.buf)+maxRatio-1)/maxRatio, minRecord*int(b.Records))
	if len(b.buf) > 0 && len(out) < least {
		// A frame that readers skip.
		fill := max(least-len(out)-8, 0)
		out = binary.LittleEndian.AppendUint32(out, 0x184d2a50)
		out = binary.LittleEndian.AppendUint32(out, uint32(fill))
		out = append(out, make([]byte, fill)...)
	}
	b.packed, b.Length = out, uint32(len(out)-blockHeaderSize)
	b.PayloadCRC = crc32.Checksum(out[blockHeaderSize:], castagnoli)
	if b.room != nil {
		b.room.Add(largestBlock(len(b.buf)) - int64(len(out)))
	}
}

// largestBlock returns at most how many bytes a block with a payload of n bytes has in the
// file.
func largestBlock(n int) int64 { return int64(blockHeaderSize + n + n>>8 + 64) }

// An unpacker reads compressed payloads.
type unpacker struct {
	*zstd.Decoder
	buf []byte
}

func newUnpacker() *unpacker {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxPayload), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err) // the options are right
	}
	return &unpacker{d, make([]byte, maxPayload)}
}

// unpack returns the payload of a block, which holds until the next call. It is false for
// one that costs more than the block is worth, or that makes no sense.
func (u *unpacker) unpack(h *blockHeader, packed []byte) ([]byte, bool) {
	limit := min(maxPayload, maxRatio*len(packed))
	payload, err := u.DecodeAll(packed, u.buf[:0:limit])
	return payload, err == nil && len(payload) <= limit && int64(h.Records) <= int64(len(packed)/minRecord)
}
