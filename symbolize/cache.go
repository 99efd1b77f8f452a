package symbolize

import "container/list"

// A cache holds at most max entries and forgets the one not used for longest.
// It is not safe for concurrent use.
type cache[K comparable, V any] struct {
	max    int
	order  list.List // front is the latest used
	items  map[K]*list.Element
	forget func(K, V) // called for each entry pushed out; may be nil
}

type cached[K comparable, V any] struct {
	key   K
	value V
}

func newCache[K comparable, V any](max int, forget func(K, V)) *cache[K, V] {
	return &cache[K, V]{max: max, items: make(map[K]*list.Element), forget: forget}
}

func (c *cache[K, V]) get(k K) (V, bool) {
	e, ok := c.items[k]
	if !ok {
		var zero V
		return zero, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached[K, V]).value, true
}

func (c *cache[K, V]) put(k K, v V) {
	if e, ok := c.items[k]; ok {
		e.Value.(*cached[K, V]).value = v
		c.order.MoveToFront(e)
		return
	}
	c.items[k] = c.order.PushFront(&cached[K, V]{k, v})
	for len(c.items) > c.max {
		c.evict(c.order.Back())
	}
}

// remove takes k out without calling forget.
func (c *cache[K, V]) remove(k K) {
	if e, ok := c.items[k]; ok {
		delete(c.items, k)
		c.order.Remove(e)
	}
}

func (c *cache[K, V]) evict(e *list.Element) {
	it := e.Value.(*cached[K, V])
	delete(c.items, it.key)
	c.order.Remove(e)
	if c.forget != nil {
		c.forget(it.key, it.value)
	}
}

func (c *cache[K, V]) clear() {
	for len(c.items) > 0 {
		c.evict(c.order.Back())
	}
}
