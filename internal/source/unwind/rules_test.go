package unwind

import (
	"slices"
	"testing"

	sdtypes "go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// Processes that bring rules of their own, one after the other, do not fill the kernel
// side's array; what a table still uses keeps its number.
func TestRulesAreGivenBack(t *testing.T) {
	array := map[uint16]sdtypes.UnwindInfo{}
	most := uint16(0)
	r := rules{numbers: make(map[sdtypes.UnwindInfo]*rule), put: func(n uint16, info sdtypes.UnwindInfo) error {
		array[n] = info
		most = max(most, n)
		return nil
	}}
	of := func(param int32) sdtypes.UnwindInfo { return sdtypes.UnwindInfo{BaseReg: 7, Param: param} }
	lasting := []sdtypes.UnwindInfo{of(-1), sdtypes.UnwindInfoStop, of(-2)}
	kept, err := r.acquire(lasting)
	if err != nil {
		t.Fatal(err)
	}
	if kept[1] != uint16(support.UnwindCommandStop)|support.DeltaCommandFlag {
		t.Errorf("a command is %#x", kept[1])
	}
	for i := range int32(100_000) {
		mine := []sdtypes.UnwindInfo{of(2 * i), of(-1), of(2*i + 1)}
		numbers, err := r.acquire(mine)
		if err != nil {
			t.Fatal(err)
		}
		for j, n := range numbers {
			if array[n] != mine[j] {
				t.Fatalf("rule %d has the number of another", j)
			}
		}
		r.release(mine)
	}
	if again, _ := r.acquire(lasting); !slices.Equal(again, kept) || array[kept[0]] != lasting[0] || array[kept[2]] != lasting[2] {
		t.Error("a rule that is used lost its number")
	}
	if most > 10 {
		t.Errorf("%d numbers were used", most+1)
	}
}
