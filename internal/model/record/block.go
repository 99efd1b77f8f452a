package record

import (
	"encoding/binary"
	"hash/crc32"
)

// A blockHeader describes the payload of a block. Its fields are those of the file, in order.
type blockHeader struct {
	PayloadCRC  uint32
	Length      uint32 // of the payload, in bytes
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
	return h, err == nil && h.Length <= maxPayload
}

// A block is one being filled or on its way to the file.
type block struct {
	blockHeader
	buf []byte // room for the header, then the payload
}

// bytes returns the block as it goes to the file.
func (b *block) bytes(salt uint32) []byte {
	out := b.buf[:blockHeaderSize+int(b.Length)]
	b.PayloadCRC = crc32.Checksum(out[blockHeaderSize:], castagnoli)
	b.put(out, salt)
	return out
}
