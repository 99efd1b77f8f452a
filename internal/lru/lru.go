// Package lru has a map that is bounded: it forgets the entry that was not used for
// longest.
package lru

import "container/list"

// A Cache holds at most so many entries. It is not safe for concurrent use.
type Cache[K comparable, V any] struct {
	// Forget, if not nil, is called for each entry that is pushed out, and by Clear.
	Forget func(K, V)

	max   int
	order list.List // front is the latest used
	items map[K]*list.Element
}

type item[K comparable, V any] struct {
	key   K
	value V
}

// New returns an empty Cache for max entries.
func New[K comparable, V any](max int, forget func(K, V)) *Cache[K, V] {
	return &Cache[K, V]{max: max, items: make(map[K]*list.Element), Forget: forget}
}

// Len is how many entries there are.
func (c *Cache[K, V]) Len() int { return len(c.items) }

// Get returns an entry, which counts as a use of it.
func (c *Cache[K, V]) Get(k K) (v V, ok bool) {
	e, ok := c.items[k]
	if !ok {
		return v, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*item[K, V]).value, true
}

// Put adds an entry, or replaces it.
func (c *Cache[K, V]) Put(k K, v V) {
	if e, ok := c.items[k]; ok {
		e.Value.(*item[K, V]).value = v
		c.order.MoveToFront(e)
		return
	}
	c.items[k] = c.order.PushFront(&item[K, V]{k, v})
	for len(c.items) > c.max {
		c.Evict()
	}
}

// Remove takes k out without calling Forget.
func (c *Cache[K, V]) Remove(k K) {
	if e, ok := c.items[k]; ok {
		delete(c.items, k)
		c.order.Remove(e)
	}
}

// Evict pushes out the entry that was not used for longest, if there is one.
func (c *Cache[K, V]) Evict() {
	e := c.order.Back()
	if e == nil {
		return
	}
	it := e.Value.(*item[K, V])
	delete(c.items, it.key)
	c.order.Remove(e)
	if c.Forget != nil {
		c.Forget(it.key, it.value)
	}
}

// Clear pushes out all.
func (c *Cache[K, V]) Clear() {
	for len(c.items) > 0 {
		c.Evict()
	}
}
