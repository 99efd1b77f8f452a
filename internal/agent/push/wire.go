package push

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// A message is a protobuf message as it grows. Fields that are zero may be left out.
type message []byte

func (m *message) number(field protowire.Number, v uint64) {
	if v != 0 {
		*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), v)
	}
}

func (m *message) fixed(field protowire.Number, v uint64) {
	*m = protowire.AppendFixed64(protowire.AppendTag(*m, field, protowire.Fixed64Type), v)
}

func (m *message) bytes(field protowire.Number, b []byte) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), b)
}

func (m *message) text(field protowire.Number, s string) {
	*m = protowire.AppendString(protowire.AppendTag(*m, field, protowire.BytesType), s)
}

// packed adds a repeated field of numbers.
func (m *message) packed(field protowire.Number, all []uint64) {
	if len(all) == 0 {
		return
	}
	size := 0
	for _, v := range all {
		size += protowire.SizeVarint(v)
	}
	*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.BytesType), uint64(size))
	for _, v := range all {
		*m = protowire.AppendVarint(*m, v)
	}
}

var errMessage = errors.New("the answer is not the message that it should be")

// fields yields the fields of a message that came from elsewhere: v is the value of one
// that is a number, b of one that has bytes.
func fields(msg []byte, field func(n protowire.Number, v uint64, b []byte)) error {
	for len(msg) > 0 {
		n, kind, size := protowire.ConsumeTag(msg)
		if size < 0 {
			return errMessage
		}
		msg = msg[size:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, size = protowire.ConsumeVarint(msg)
		case protowire.BytesType:
			b, size = protowire.ConsumeBytes(msg)
		default:
			size = protowire.ConsumeFieldValue(n, kind, msg)
		}
		if size < 0 {
			return errMessage
		}
		msg = msg[size:]
		field(n, v, b)
	}
	return nil
}
