package leak

import (
	"encoding/binary"
	"hash/maphash"

	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// seed keeps a traced program from choosing names whose keys collide.
var seed = maphash.MakeSeed()

// key is equal for the samples of one call site in all snapshots of a trace. A
// process may change its name, and names may be found later than addresses:
// what has a pid or an address goes by that.
func key(s *snapshot.Sample) uint64 {
	h := hasher{}
	h.SetSeed(seed)
	h.number(uint64(s.PID))
	h.text(s.Kind)
	h.text(s.API)
	h.text(s.Runtime)
	h.text(s.GPU)
	for _, l := range s.Stack {
		h.number(l.Address)
		if l.Address != 0 {
			continue
		}
		h.number(uint64(len(l.Lines)))
		for i := range l.Lines {
			h.text(l.Lines[i].Function)
			h.text(l.Lines[i].File)
			h.number(uint64(l.Lines[i].Line))
		}
	}
	return h.Sum64()
}

type hasher struct{ maphash.Hash }

func (h *hasher) number(n uint64) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], n)
	h.Write(b[:])
}

func (h *hasher) text(s string) {
	h.number(uint64(len(s)))
	h.WriteString(s)
}
