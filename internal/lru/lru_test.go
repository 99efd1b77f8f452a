package lru

import (
	"fmt"
	"testing"
)

func TestCache(t *testing.T) {
	forgotten := ""
	c := New(3, func(k, v int) { forgotten += fmt.Sprint(k, "=", v, " ") })
	for i := range 4 {
		c.Put(i, i)
		c.Get(0)
	}
	c.Put(3, 30)
	got := ""
	for i := range 4 {
		v, ok := c.Get(i)
		got += fmt.Sprint(v, ok, " ")
	}
	if want := "0 true 0 false 2 true 30 true "; got != want || c.Len() != 3 || c.order.Len() != 3 {
		t.Errorf("%s, %d entries, %d in order", got, c.Len(), c.order.Len())
	}
	c.Remove(2)
	c.Remove(7)
	c.Clear()
	c.Evict()
	if want := "1=1 0=0 3=30 "; forgotten != want || c.Len() != 0 || c.order.Len() != 0 {
		t.Errorf("forgot %s, want %s, %d are left", forgotten, want, c.Len())
	}
}
