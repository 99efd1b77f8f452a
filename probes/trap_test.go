package probes

import (
	"reflect"
	"testing"
)

// A trap takes time, and its probe is gone after.
func TestTrapCost(t *testing.T) {
	needTracing(t)
	code := func() (b [8]byte) { return *(*[8]byte)(reflect.ValueOf(trapped).UnsafePointer()) }
	before := code()
	cost, err := TrapCost()
	if err != nil {
		t.Fatal(err)
	}
	if cost <= 0 {
		t.Errorf("%v a trap", cost)
	}
	if after := code(); after != before {
		t.Errorf("the function is %x, and was %x: the probe is still there", after, before)
	}
}
