package filememo

import (
	"container/list"
	"sync"
)

// memory is a store that ends with the process.
type memory struct {
	limit int64

	mu      sync.Mutex
	size    int64
	entries map[string]*list.Element
	used    *list.List // of kept, the one used last in front
}

type kept struct {
	name  string
	entry []byte
}

func newMemory(limit int64) *memory {
	return &memory{limit: limit, entries: make(map[string]*list.Element), used: list.New()}
}

func (m *memory) get(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[name]
	if !ok {
		return nil, nil
	}
	m.used.MoveToFront(e)
	return e.Value.(kept).entry, nil
}

func (m *memory) put(name string, entry []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.entries[name]; ok {
		m.drop(e)
	}
	m.entries[name] = m.used.PushFront(kept{name, entry})
	m.size += int64(len(entry))
	for m.size > m.limit {
		m.drop(m.used.Back())
	}
	return nil
}

func (m *memory) drop(e *list.Element) {
	k := m.used.Remove(e).(kept)
	delete(m.entries, k.name)
	m.size -= int64(len(k.entry))
}
