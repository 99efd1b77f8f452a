package workload

import "container/list"

// A recent is a map that keeps the entries that were used last.
type recent[K comparable, V any] struct {
	most    int
	entries map[K]*list.Element
	order   list.List // of *pair[K, V], the last used in front
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

// newRecent returns an empty one, for at most so many entries.
func newRecent[K comparable, V any](most int) *recent[K, V] {
	return &recent[K, V]{most: most, entries: map[K]*list.Element{}}
}

func (r *recent[K, V]) get(key K) (value V, ok bool) {
	e, ok := r.entries[key]
	if !ok {
		return value, false
	}
	r.order.MoveToFront(e)
	return e.Value.(*pair[K, V]).value, true
}

// put adds an entry, or replaces it, and drops the one that was used longest ago if
// there are too many.
func (r *recent[K, V]) put(key K, value V) {
	if e, ok := r.entries[key]; ok {
		e.Value.(*pair[K, V]).value = value
		r.order.MoveToFront(e)
		return
	}
	r.entries[key] = r.order.PushFront(&pair[K, V]{key, value})
	if len(r.entries) > r.most {
		last := r.order.Back()
		r.order.Remove(last)
		delete(r.entries, last.Value.(*pair[K, V]).key)
	}
}
