package ledger

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// Memory of a pool is where the pool is, whichever device the thread is on that takes it.
func TestPoolPlace(t *testing.T) {
	place := func(h uint64, d int32, k event.Kind) *event.Event {
		return ev(1, event.OpPoolCreate, handle(h), device(d), kind(k))
	}
	for _, c := range []struct {
		name   string
		pool   *event.Event
		want   event.Kind
		device int32
	}{
		{"another device", place(7, 1, event.KindNone), event.KindAsync, 1},
		{"the host", place(7, event.NoDevice, event.KindAsyncHost), event.KindAsyncHost, event.NoDevice},
		{"managed", place(7, event.NoDevice, event.KindAsyncManaged), event.KindAsyncManaged, event.NoDevice},
		{"not known", place(8, 1, event.KindNone), event.KindAsync, 0},
	} {
		l := New(Options{})
		taken := ev(2, alloc, at(16, 100), async, handle(7), ctx(5), device(0))
		l.Apply(c.pool)
		l.Apply(taken)
		l.Apply(ev(3, event.OpContextDestroy, ctx(5))) // a pool's memory outlives each context
		if k, d := l.PlaceOf(taken); k != c.want || d != c.device {
			t.Errorf("%s: place %v on %d, want %v on %d", c.name, k, d, c.want, c.device)
		}
		n := 0
		for s := range l.Sites {
			if n += int(s.InuseObjects); s.InuseObjects != 0 && (s.Kind != c.want || s.Device != c.device) {
				t.Errorf("%s: %v on %d, want %v on %d", c.name, s.Kind, s.Device, c.want, c.device)
			}
		}
		if n != 1 {
			t.Errorf("%s: %d allocations, want 1", c.name, n)
		}
	}
}
