package whatif

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

// A LoRA of GPT-2 was trained with 8, 16 and 32 texts at a time on an H200.
func TestFit(t *testing.T) {
	const real32 = 31_625_052_160
	f, err := NewFit([]Measured{{16, recording(t, "allocator/peft_16.gmt")}, {8, recording(t, "allocator/peft_8.gmt")}})
	if err != nil {
		t.Fatal(err)
	}
	if f.Paired() != 1 {
		t.Errorf("%v of the bytes are paired, want all", f.Paired())
	}
	for _, m := range f.runs {
		if got, want := f.At(m.At).Peak, m.Run.peak(); got != want {
			t.Errorf("at %g: peak %d, was %d", m.At, got, want)
		}
	}
	if got := f.At(32).Peak; got != real32 {
		t.Errorf("at 32: peak %d, was %d", got, real32)
	}
	if low, high := f.Spread(32, real32); low != 31_587_303_424 || high != 31_692_427_329 {
		t.Errorf("at 32: %d to %d", low, high)
	}
	// Half of what PyTorch reserves is cached, so that more runs where it gives that back.
	if got := f.largest(real32, true); got.Kept != 32 || got.Emptying != 56 {
		t.Errorf("what 32 take lets %+v run", got)
	}
	if got := f.largest(1, false); got.Kept != 0 || got.Emptying != 0 {
		t.Errorf("nothing lets %+v run", got)
	}
	// Its stacks are of the moment that the table has, at both numbers.
	for _, n := range []float64{16, 32} {
		sum := uint64(0)
		for _, g := range f.Growths(n) {
			sum += g.Predicted
		}
		if got, want := float64(sum), float64(f.At(n).Allocated); math.Abs(got-want) > 0.002*want {
			t.Errorf("at %g: stacks have %.0f bytes, of %.0f in tensors at the peak", n, got, want)
		}
	}
}

func TestWriteFit(t *testing.T) {
	x := recording(t, "allocator/peft_16.gmt")
	f, err := NewFit([]Measured{{16, x}, {8, recording(t, "allocator/peft_8.gmt")}})
	if err != nil {
		t.Fatal(err)
	}
	written := func(memory uint64) string {
		var page bytes.Buffer
		if err := f.Write(&page, []float64{64, 32}, Limits{Memory: memory}, Options{}); err != nil {
			t.Error(err)
		}
		return page.String()
	}
	expect := func(page string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(page, w) {
				t.Errorf("%q is not in\n%s", w, page)
			}
		}
	}
	page := written(0)
	expect(page, "python3 on GPU 0\n", "At 32 PyTorch would reserve 29.5 GiB at the peak. Not known, because the recording lacks it: what\n", "100.0% of the bytes",
		"  32       29.5 GiB              14.7 GiB  14.7 GiB (50.1%)\n", "  4.52 GiB  9.00 GiB\n")
	if strings.Contains(page, "FITS") {
		t.Errorf("what fits into a GPU of unknown size?\n%s", page)
	}
	expect(page, "32 fits into a GPU that has about 29.5 GiB for PyTorch alone.")
	expect(written(20<<30), "fits into 20.0 GiB of GPU memory is 21, counting PyTorch's memory alone\n  because the recording lacks the rest.", "PYTORCH ALONE FITS INTO 20.0 GiB\n", "(48.2%)  yes\n", "(50.1%)  no\n")
	x.Beside = 700 << 20
	expect(written(20<<30), "32 does not fit into 20.0 GiB. At 32", "about 30.1 GiB in\n  nvidia-smi, with the 700 MiB", "fits into 20.0 GiB of GPU memory is 20: PyTorch can reserve 19.3 GiB of it", "30.1 GiB  no\n", "15.6 GiB  yes\n")
	expect(written(20<<30), " Up to 36 the run would not fail either, but PyTorch would have to give cached memory back")
	x.Memory = 80 << 30
	expect(written(0), "32 fits into this GPU, 80.0 GiB. At 32", "number that fits into 80.0 GiB of GPU memory is ", "FITS INTO 80.0 GiB\n", "30.1 GiB  yes\n")
}

// A number that was recorded has one row, which says what was measured, whatever is not modelled.
func TestWriteFitOfRecordedNumber(t *testing.T) {
	conv := []Site{{Key: "f", Text: "f", Workspace: true}}
	low, high := sized(100, 90), sized(100, 170)
	low.Sites, high.Sites = conv, conv
	f, err := NewFit([]Measured{{8, low}, {16, high}})
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	if err := f.Write(&page, []float64{32, 8}, Limits{Memory: 1 << 30}, Options{Width: 1000}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(page.String(), "\n")
	for _, want := range []string{"8 fits into 1.00 GiB, counting PyTorch's memory alone. At 8 PyTorch reserved 190 MiB at the peak, as measured. ", "   8 ", "  16 ", "  32 "} {
		n := 0
		for _, line := range lines {
			if strings.HasPrefix(line, want) {
				n++
				if strings.HasSuffix(line, "perhaps") != (want == "  32 ") {
					t.Errorf("%q", line)
				}
			}
		}
		if n != 1 {
			t.Errorf("%d lines begin with %q in\n%s", n, want, page.String())
		}
	}
}

// How far a prediction can be relied on: a third recording shows its error, and beyond four times
// the highest number nothing was tested.
func TestReliable(t *testing.T) {
	written := func(to float64, runs ...Measured) string {
		f, err := NewFit(runs)
		if err != nil {
			t.Fatal(err)
		}
		var page bytes.Buffer
		if err := f.Write(&page, []float64{to}, Limits{}, Options{Width: 1000}); err != nil {
			t.Fatal(err)
		}
		return page.String()
	}
	two := []Measured{{8, sized(100, 90)}, {16, sized(100, 170)}}
	const unknown, far = "Two recordings do not show how far the prediction is off. A third one, such as of 24, would.", "is more than 4 times the highest recorded number"
	for _, test := range []struct {
		page      string
		want, not []string
	}{
		{written(64, two...), []string{unknown}, []string{far, "cuDNN"}},
		{written(65, two...), []string{unknown, "65 " + far}, nil},
		{written(12, two...), nil, []string{"error", unknown}},
		// The first two predict 350 MiB, and it had 400.
		{written(40, append(two, Measured{24, sized(100, 300)})...), []string{"the peak at 24 with an error of -12.5%. If the error grows with the distance, it is about -25.0% at 40."}, []string{unknown, far}},
		{written(12, append(two, Measured{24, sized(100, 300)})...), []string{"with an error of -12.5%.\n"}, []string{"distance"}},
	} {
		for _, w := range test.want {
			if !strings.Contains(test.page, w) {
				t.Errorf("%q is not in\n%s", w, test.page)
			}
		}
		for _, w := range test.not {
			if strings.Contains(test.page, w) {
				t.Errorf("%q is in\n%s", w, test.page)
			}
		}
	}
}

// What a process holds beside its segments is known of its own GPU only.
func TestBeside(t *testing.T) {
	s := &snapshot.Snapshot{
		Accounts: []snapshot.Account{{PID: 7, GPU: "0", Total: 900, Known: true}, {PID: 7, GPU: "1", Total: 300, Known: true}, {PID: 8, GPU: "0", Total: 50, Known: true}},
		Allocators: []snapshot.Allocator{
			{PID: 7, GPU: "0", Segments: []snapshot.Segments{{Reserved: 500}, {Private: "1.0", Reserved: 100}}},
			{PID: 7, GPU: "1", Segments: []snapshot.Segments{{Reserved: 310}}},
			{PID: 8, GPU: "0", Segments: []snapshot.Segments{{Reserved: 20}}},
		},
	}
	for _, test := range []struct {
		pid  uint32
		gpu  string
		want uint64
	}{{7, "0", 300}, {7, "1", 0}, {7, "", 0}, {8, "", 30}, {9, "0", 0}} {
		x := &Run{Process: event.Process{PID: test.pid}, GPU: test.gpu}
		if x.SetBeside(s); x.Beside != test.want {
			t.Errorf("process %d on GPU %q: %d, want %d", test.pid, test.gpu, x.Beside, test.want)
		}
	}
}

// sized is a run of one tensor for each size in MiB, all at one stack.
func sized(sizes ...uint64) *Run {
	x := &Run{Sites: []Site{{Key: "f", Text: "f"}}}
	a := allocator.New(allocator.Settings{})
	for i, mib := range sizes {
		b := a.Allocate(mib<<20, 0, 0)
		x.Addresses, x.Stacks = append(x.Addresses, b.Address), append(x.Stacks, 0)
		x.Requests = append(x.Requests, allocator.Request{Op: allocator.Make, Tensor: uint32(i), Units: uint32(b.Size / unit)})
		x.Reserved = append(x.Reserved, uint32(a.Reserved/unit))
	}
	return x
}

func TestFitCurves(t *testing.T) {
	line, err := NewFit([]Measured{{8, sized(100, 90)}, {16, sized(100, 170)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := line.At(32).Allocated >> 20; got != 100+330 {
		t.Errorf("%d MiB at 32, want 100 + 330", got)
	}
	if line.Curved != 0 {
		t.Errorf("%d bytes seem curved", line.Curved)
	}
	square := []Measured{{4, sized(16)}, {8, sized(64)}, {12, sized(144)}}
	if f, err := NewFit(square[:2]); err != nil || f.Curved == 0 {
		t.Errorf("%v: two runs do not show that a tensor grows faster than the number", err)
	}
	f, err := NewFit(square)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.At(16).Allocated >> 20; got != 256 {
		t.Errorf("%d MiB at 16, want 256", got)
	}
	if _, ok := f.Check(); !ok {
		t.Error("three runs do not check each other")
	}
	if _, err := NewFit([]Measured{{8, sized(1)}, {8, sized(2)}}); err == nil {
		t.Error("two runs of one number fit")
	}
}

// The simplest curve is taken that the blocks allow: those that may exceed the request do.
func TestThrough(t *testing.T) {
	const mib = 1 << 20
	at := func(n float64, kib uint32, whole bool) point {
		b := block{units: kib << 10 / unit}
		if whole {
			b.spare = small
		}
		return point{n, b}
	}
	for name, test := range map[string]struct {
		points []point
		want   curve
	}{
		"constant":                       {[]point{at(8, 3000, false), at(16, 3000, false)}, curve{3000 << 10}},
		"constant, in a larger block":    {[]point{at(8, 3000, false), at(16, 4000, true)}, curve{3000 << 10}},
		"constant, in two larger blocks": {[]point{at(8, 3500, true), at(16, 3000, true)}, curve{3000 << 10}},
		"multiple":                       {[]point{at(8, 8<<10, false), at(16, 16<<10, false)}, curve{0, mib}},
		"multiple, in a larger block":    {[]point{at(8, 8<<10+1000, true), at(16, 16<<10, false)}, curve{0, mib}},
		"multiple, in two larger blocks": {[]point{at(8, 8<<10+10, true), at(16, 16<<10+1000, true)}, curve{0, (8<<10 + 10) << 10 / 8}},
		// A constant would leave 768 KiB of the second block to spare.
		"multiple, in a block for both": {[]point{at(8, 768, false), at(16, 1536, true)}, curve{0, 96 << 10}},
		// What other requests suggest is less than that both blocks are multiples.
		"multiple, of two whole blocks": {[]point{{8, block{2304, 1280, 768}}, {16, block{4096, 0, 2048}}}, curve{0, 384 * unit}},
		"line":                          {[]point{at(8, 10<<10, false), at(16, 18<<10, false)}, curve{2 * mib, mib}},
		"line, one in a larger block":   {[]point{at(8, 10<<10, false), at(16, 18<<10, false), at(24, 26<<10+900, true)}, curve{2 * mib, mib}},
		"parabola":                      {[]point{at(8, 64<<10, false), at(16, 256<<10, false), at(24, 576<<10, false)}, curve{0, 0, mib}},
	} {
		if got := through(test.points); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestAlign(t *testing.T) {
	run := func(keys string) *Run {
		x := &Run{}
		for i, k := range keys {
			x.Sites = append(x.Sites, Site{Key: string(k)})
			x.Stacks = append(x.Stacks, uint32(i))
		}
		return x
	}
	for _, test := range []struct {
		a, b string
		want []int32
	}{
		{"abc", "abc", []int32{0, 1, 2}},
		{"abxc", "abc", []int32{0, 1, -1, 2}},
		{"abc", "abxc", []int32{0, 1, 3}},
		{"aab", "ab", nil},
		{"", "abc", []int32{}},
		{"abc", "", []int32{-1, -1, -1}},
		{"xyz", "abc", []int32{-1, -1, -1}},
	} {
		got := align(run(test.a), run(test.b))
		if test.want == nil { // of two equal ones either may be paired
			if got[2] != 1 || (got[0] < 0) == (got[1] < 0) {
				t.Errorf("%q, %q: %v", test.a, test.b, got)
			}
			continue
		}
		if len(got) != len(test.want) {
			t.Errorf("%q, %q: %v", test.a, test.b, got)
		}
		for i := range got {
			if got[i] != test.want[i] {
				t.Errorf("%q, %q: %v, want %v", test.a, test.b, got, test.want)
				break
			}
		}
	}
}

// atNumber is what a program would ask for at another number, and PyTorch's default would do: its
// tensors that do not live long grow with the number.
func atNumber(x *Run, n float64) *Run {
	made, last := make([]int, len(x.Addresses)), make([]int, len(x.Addresses))
	for i := range last {
		last[i] = len(x.Requests)
	}
	for i := range x.Requests {
		switch q := &x.Requests[i]; q.Op {
		case allocator.Make:
			made[q.Tensor] = i
		case allocator.Free:
			last[q.Tensor] = i
		}
	}
	out := &Run{Sites: x.Sites}
	out.Stacks = x.Stacks
	out.Addresses = make([]uint64, len(x.Addresses))
	a, blocks := allocator.New(allocator.Settings{}), make([]*allocator.Block, len(x.Addresses))
	for i := range x.Requests {
		q := x.Requests[i]
		switch q.Op {
		case allocator.Make:
			size := float64(q.Units) * unit
			if last[q.Tensor]-made[q.Tensor] < len(x.Requests)/2 {
				size *= n / 16
			}
			b := a.Allocate(uint64(size), q.Stream, q.Private)
			blocks[q.Tensor], out.Addresses[q.Tensor], q.Units = b, b.Address, uint32(b.Size/unit)
		case allocator.Free:
			a.Free(blocks[q.Tensor])
		}
		out.Requests, out.Reserved = append(out.Requests, q), append(out.Reserved, uint32(a.Reserved/unit))
	}
	return out
}

// Blocks hide some sizes of requests from a fit, and nothing else. The requests are BERT's, and those
// of inference on four streams.
func TestFitOfHiddenSizes(t *testing.T) {
	for name, wrong := range map[string]float64{"bert": 0.001, "streams": 0.008} {
		x := recording(t, "allocator/"+name+"_expandable.gmt")
		x.Check(allocator.Settings{Expandable: true})
		f, err := NewFit([]Measured{{8, atNumber(x, 8)}, {16, atNumber(x, 16)}})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []float64{24, 32, 64} {
			peak, real := f.At(n).Peak, atNumber(x, n).peak()
			if low, high := f.Spread(n, peak); math.Abs(float64(peak)/float64(real)-1) > wrong || float64(low) > 1.002*float64(real) || float64(high) < 0.998*float64(real) {
				t.Errorf("%s at %g: peak %d, %d to %d, was %d", name, n, peak, low, high, real)
			}
		}
	}
}
