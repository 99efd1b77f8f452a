package filememo

import (
	"math"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
)

// memory is a store that ends with the process.
type memory struct {
	mu      sync.Mutex
	entries *lru.Cache[string, []byte]
	room    int64 // bytes left of the limit
}

func newMemory(limit int64) *memory {
	m := &memory{room: limit}
	m.entries = lru.New(math.MaxInt, func(_ string, entry []byte) { m.room += int64(len(entry)) })
	return m
}

func (m *memory) get(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry, _ := m.entries.Get(name)
	return entry, nil
}

func (m *memory) put(name string, entry []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, _ := m.entries.Get(name)
	m.entries.Add(name, entry)
	m.room += int64(len(old) - len(entry))
	for m.room < 0 {
		m.entries.RemoveOldest()
	}
	return nil
}
