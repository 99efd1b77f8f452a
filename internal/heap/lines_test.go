package heap

import (
	"encoding/hex"
	"testing"
)

// The tables and lines are those of a generator function, as CPython gives them:
// co_linetable, and co_lines() for each code unit.
func TestLines(t *testing.T) {
	table := func(s string) *LineTable {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return &LineTable{First: 6, Bytes: b}
	}
	v312 := table("e800f88000dc040b88418871844dd80a0b8347f9")
	for unit, want := range map[int]int{0: 6, 1: 0, 2: 6, 3: 7, 14: 7, 15: 8, 19: 8, 20: 0, 21: 0, 22: 0} {
		if got, _ := v312.Line311(unit); got != want {
			t.Errorf("3.12: unit %d: line %d, want %d", unit, got, want)
		}
	}
	v310 := table("02800a010a01")
	for unit, want := range map[int]int{0: 0, 1: 7, 5: 7, 6: 8, 10: 8, 11: 0} {
		if got, _ := v310.Line310(unit); got != want {
			t.Errorf("3.10: instruction %d: line %d, want %d", unit, got, want)
		}
	}
}

// A traced process may have anything where a line table should be.
func FuzzLines(f *testing.F) {
	f.Add([]byte("\xe8\x00\xf8\x80\x00\xdc\x04\x0b"), 3)
	f.Add([]byte("\x02\x80\x0a\x01"), 1)
	f.Fuzz(func(t *testing.T, b []byte, unit int) {
		for _, line := range []func(*LineTable, int) (int, error){(*LineTable).Line36, (*LineTable).Line310, (*LineTable).Line311} {
			line(&LineTable{First: 1, Bytes: b}, unit)
		}
	})
}
