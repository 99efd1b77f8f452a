package record

import (
	"encoding/binary"
	"hash/crc32"
)

// A blockHeader is what a block says of its payload.
type blockHeader struct {
	payloadCRC  uint32
	length      uint32 // of the payload, in bytes
	sequence    uint64
	first, last uint64 // nanoseconds of CLOCK_MONOTONIC
	records     uint32
	flags       uint32
	lost        uint64
}

// put writes h to the first blockHeaderSize bytes of b.
func (h *blockHeader) put(b []byte, salt uint32) {
	copy(b, blockMagic)
	binary.LittleEndian.PutUint32(b[8:], h.payloadCRC)
	binary.LittleEndian.PutUint32(b[12:], h.length)
	binary.LittleEndian.PutUint64(b[16:], h.sequence)
	binary.LittleEndian.PutUint64(b[24:], h.first)
	binary.LittleEndian.PutUint64(b[32:], h.last)
	binary.LittleEndian.PutUint32(b[40:], h.records)
	binary.LittleEndian.PutUint32(b[44:], h.flags)
	binary.LittleEndian.PutUint64(b[48:], h.lost)
	binary.LittleEndian.PutUint32(b[4:], crc32.Update(salt, castagnoli, b[8:blockHeaderSize]))
}

// parseBlock reads a block's header. It is false for what is not one.
func parseBlock(b []byte, salt uint32) (h blockHeader, ok bool) {
	if len(b) < blockHeaderSize || string(b[:4]) != blockMagic {
		return h, false
	}
	if crc32.Update(salt, castagnoli, b[8:blockHeaderSize]) != binary.LittleEndian.Uint32(b[4:]) {
		return h, false
	}
	h = blockHeader{
		payloadCRC: binary.LittleEndian.Uint32(b[8:]),
		length:     binary.LittleEndian.Uint32(b[12:]),
		sequence:   binary.LittleEndian.Uint64(b[16:]),
		first:      binary.LittleEndian.Uint64(b[24:]),
		last:       binary.LittleEndian.Uint64(b[32:]),
		records:    binary.LittleEndian.Uint32(b[40:]),
		flags:      binary.LittleEndian.Uint32(b[44:]),
		lost:       binary.LittleEndian.Uint64(b[48:]),
	}
	return h, h.length <= maxPayload
}

// A block is one being filled or on its way to the file.
type block struct {
	blockHeader
	buf []byte // room for the header, then the payload
}

// bytes returns the block as it goes to the file.
func (b *block) bytes(salt uint32) []byte {
	out := b.buf[:blockHeaderSize+int(b.length)]
	b.payloadCRC = crc32.Checksum(out[blockHeaderSize:], castagnoli)
	b.put(out, salt)
	return out
}
