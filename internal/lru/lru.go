// Package lru makes caches that forget the entry that was not used for longest.
package lru

import "github.com/hashicorp/golang-lru/v2/simplelru"

// A Cache holds at most so many entries. It is not safe for concurrent use.
type Cache[K comparable, V any] = simplelru.LRU[K, V]

// New returns an empty Cache for max entries, which is more than 0. forget, if not nil, is called
// for each entry that leaves it.
func New[K comparable, V any](max int, forget func(K, V)) *Cache[K, V] {
	c, err := simplelru.NewLRU(max, forget)
	if err != nil {
		panic(err)
	}
	return c
}
