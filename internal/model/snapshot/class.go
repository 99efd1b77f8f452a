package snapshot

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// Kinds of what PyTorch's allocator holds, by name: tensors, and what is in none.
var (
	Tensor = event.KindTensor.String()
	Cached = event.KindCached.String()
)

// Class returns the class of a kind's name: bytes of one class may be added up,
// device and host bytes may not. What is no kind of an event's is of class device.
func Class(kind string) string {
	for k := range event.NumKinds {
		if k.String() == kind {
			return k.Class().String()
		}
	}
	return event.ClassDevice.String()
}
