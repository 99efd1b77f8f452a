package gpu

import (
	"math"
	"slices"
	"testing"
)

const mib = 1 << 20

func TestListingUse(t *testing.T) {
	const notAvailable = math.MaxUint64
	const total = 1000 * mib
	type row struct {
		pid  int
		used uint64
	}
	known := ProcessUse{PID: 7, Bytes: 600 * mib, Known: true}
	inferred := ProcessUse{PID: 7, Bytes: 600 * mib, Known: true, Inferred: true}
	whole := ProcessUse{PID: 7, Bytes: 610 * mib, Known: true, Inferred: true}
	none := ProcessUse{PID: 7}
	for _, tt := range []struct {
		name    string
		initial bool
		absent  bool
		rows    []row
		open    []int // processes that have the device open
		want    ProcessUse
	}{
		{"plain", true, false, []row{{7, 600 * mib}, {8, 100 * mib}}, nil, known},
		{"in two lists", true, false, []row{{7, 600 * mib}, {7, 600 * mib}}, nil, known},
		{"in two lists, one without a figure", true, false, []row{{7, notAvailable}, {7, 600 * mib}}, nil, known},
		{"not listed", true, false, []row{{8, 600 * mib}}, []int{7}, none},
		{"not available, two", true, false, []row{{7, notAvailable}, {8, 600 * mib}}, []int{7, 8}, none},
		{"not available, alone", true, false, []row{{7, notAvailable}}, []int{7}, whole},
		{"32-bit not available, two", true, false, []row{{7, math.MaxUint32}, {8, mib}}, []int{7, 8}, none},
		{"zero, two", true, false, []row{{7, 0}, {8, mib}}, []int{7, 8}, none},
		{"more than the device has, two", true, false, []row{{7, total + 4096}, {8, mib}}, []int{7, 8}, none},
		{"no list, alone", true, true, nil, []int{7}, whole},
		{"no list, two", true, true, nil, []int{7, 8}, none},
		{"no list, someone else", true, true, nil, []int{8}, none},
		{"container, pids translated", false, false, []row{{7, 600 * mib}}, []int{7}, known},
		{"container, one of two pids foreign", false, false, []row{{7, 600 * mib}, {4711, mib}}, []int{7}, none},
		{"container, host's pid, alone", false, false, []row{{4711, 600 * mib}}, []int{7}, inferred},
		{"container, host's pid, two here", false, false, []row{{4711, 600 * mib}}, []int{7, 8}, none},
		{"container, host's pids, two", false, false, []row{{4711, 600 * mib}, {4712, mib}}, []int{7}, none},
		{"container, host's pid without a figure", false, false, []row{{4711, notAvailable}}, []int{7}, whole},
		{"container, pid ours without a figure", false, false, []row{{7, notAvailable}}, []int{7}, none},
		{"container, empty list", false, false, nil, []int{7}, none},
		{"container, no list", false, true, nil, []int{7}, none},
	} {
		l := listing{total: total, initial: tt.initial, absent: tt.absent,
			memory:  Memory{Total: total, Used: 610 * mib, Known: true},
			holders: func() []int { return tt.open }}
		for _, r := range tt.rows {
			l.add(r.pid, r.used)
		}
		l.check(func(pid int) bool {
			return slices.Contains(tt.open, pid)
		})
		if got := l.use(7); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		l.memory = Memory{}
		if got := l.use(7); tt.want == whole && got != none {
			t.Errorf("%s, total not known: %+v", tt.name, got)
		}
	}
}
