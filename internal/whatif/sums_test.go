package whatif

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

// The workspaces that PyTorch 2.11 asked for on an H200: of BERT's and ViT's sums of gradients.
func TestSumWorkspace(t *testing.T) {
	for _, test := range []struct {
		name         string
		results      uint64 // of 4 bytes each
		rows, blocks uint64
	}{
		{"too few rows", 768, 1020, 0},
		{"the fewest rows", 768, 1024, 16},
		{"a part of a block", 768, 1312, 21},
		{"twice the rows", 768, 1616, 26},
		{"other results", 3072, 3232, 51},
		{"as many blocks as the GPU runs", 8192, 3072, 33},
		{"more rows than these have threads for", 8192, 64 << 10, 64},
		{"more results than the GPU runs blocks for", 128 * 2113, 1 << 20, 0},
	} {
		row := 4 * test.results
		s := sum{result: uint32(row / unit), wide: 1}
		if got, want := s.workspace(test.rows*row), test.blocks*row*128; got != want {
			t.Errorf("%s: %d bytes, want %d", test.name, got, want)
		}
		s.flags = true
		if got := s.workspace(test.rows * row); (got > 0) != (test.blocks > 0) || got > 16<<10 {
			t.Errorf("%s: %d bytes of flags", test.name, got)
		}
	}
}

// real has the peaks of programs that were run on an H200, by number.
var real = map[string]map[float64]uint64{
	"bert":                   {8: 752_877_568, 16: 981_467_136, 32: 1_459_617_792, 64: 2_229_272_576},
	"vit":                    {8: 723_517_440, 16: 941_621_248, 32: 1_365_245_952, 64: 2_227_175_424},
	"resnet50_without_cudnn": {8: 570_425_344, 16: 796_917_760, 32: 1_268_776_960, 64: 2_241_855_488},
}

// fitted is a fit of recordings, which have their numbers in their names.
func fitted(t *testing.T, program string, numbers ...string) *Fit {
	t.Helper()
	var runs []Measured
	for _, n := range numbers {
		at := map[string]float64{"8": 8, "16": 16, "32": 32}[n]
		runs = append(runs, Measured{at, recording(t, "allocator/fit/"+program+"_"+n+".gmt")})
	}
	f, err := NewFit(runs)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFitRealRuns(t *testing.T) {
	for _, test := range []struct {
		program string
		from    []string
		wrong   float64 // of ViT's convolutions cuDNN does one at 64 in another way
	}{
		{"bert", []string{"8", "16"}, 0}, {"bert", []string{"16", "32"}, 0}, {"bert", []string{"8", "32"}, 0}, {"bert", []string{"8", "16", "32"}, 0},
		{"vit", []string{"8", "16"}, 0.015},
		{"resnet50_without_cudnn", []string{"8", "16"}, 0},
	} {
		f := fitted(t, test.program, test.from...)
		for n, want := range real[test.program] {
			wrong := 0.
			if n == 64 {
				wrong = test.wrong
			}
			got := f.At(n).Peak
			if low, high := f.Spread(n, got); math.Abs(float64(got)/float64(want)-1) > wrong || low > want || high < want {
				t.Errorf("%s from %v at %g: %d, %d to %d, was %d", test.program, test.from, n, got, low, high, want)
			}
		}
		if wrong, ok := f.Check(); ok && wrong != 0 {
			t.Errorf("%s from %v: the first two predict the third with an error of %v", test.program, test.from, wrong)
		}
	}
}

// What a fit learns from runs does not depend on what was done with them before.
func TestFitTwice(t *testing.T) {
	f := fitted(t, "resnet50_without_cudnn", "8", "16")
	again, err := NewFit(f.runs)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.sizes, again.sizes) || !slices.Equal(f.spare, again.spare) {
		t.Error("the second fit of the same runs differs")
	}
}

// of is the run that a fit predicts at a number.
func of(f *Fit, n float64) *Run {
	out := &Run{Sites: f.base.Sites}
	a, blocks, tensors := allocator.New(f.own.Settings), map[uint32]*allocator.Block{}, map[uint32]uint32{}
	for _, q := range f.scaled(n).Requests {
		switch q.Op {
		case allocator.Make:
			b := a.Allocate(uint64(q.Units)*unit, q.Stream, q.Private)
			blocks[q.Tensor], tensors[q.Tensor] = b, uint32(len(out.Addresses))
			out.Addresses, out.Stacks = append(out.Addresses, b.Address), append(out.Stacks, f.base.Stacks[q.Tensor])
			q.Units = uint32(b.Size / unit)
		case allocator.Free:
			b := blocks[q.Tensor]
			if b == nil {
				continue // it was not made
			}
			a.Free(b)
			delete(blocks, q.Tensor)
		}
		q.Tensor = tensors[q.Tensor]
		out.Requests, out.Reserved = append(out.Requests, q), append(out.Reserved, uint32(a.Reserved/unit))
	}
	return out
}

// In these recordings the sums are too small to need a workspace. fit predicts the workspaces that the
// same sums need at 32, from the tensors that they add up. Its lowest peak is one without workspaces.
func TestUnseenSums(t *testing.T) {
	for program, numbers := range map[string][]float64{"bert": {4, 8}, "vit": {5, 10}} {
		known := fitted(t, program, "8", "16")
		var runs []Measured
		for _, n := range numbers {
			x := of(known, n)
			if slices.ContainsFunc(x.Stacks, func(s uint32) bool { return x.Sites[s].SumWorkspace }) {
				t.Fatalf("%s at %g has workspaces", program, n)
			}
			runs = append(runs, Measured{n, x})
		}
		f, err := NewFit(runs)
		if err != nil {
			t.Fatal(err)
		}
		want := real[program][32]
		got := f.At(32).Peak
		without := f.assuming(32, assumption{none: true}).Play(f.own.Settings, -1).Peak
		low, _ := f.Spread(32, got)
		if got != want || float64(without) > 0.95*float64(want) || low > without {
			t.Errorf("%s at 32: %d, %d without workspaces, from %d on, was %d", program, got, without, low, want)
		}
		var page bytes.Buffer
		if err := f.Write(&page, []float64{32}, Limits{}, Options{Width: 1000}); err != nil {
			t.Fatal(err)
		}
		if w := "At 32 some sums have so many rows that PyTorch asks for workspaces"; !strings.Contains(page.String(), w) {
			t.Errorf("%q is not in\n%s", w, page.String())
		}
	}
}

// A tensor that one recording alone has may be constant, or grow.
func TestAlone(t *testing.T) {
	f, err := NewFit([]Measured{{8, sized(100)}, {16, sized(100, 60)}})
	if err != nil {
		t.Fatal(err)
	}
	if f.Alone>>20 != 60 {
		t.Fatalf("%d MiB are in one recording alone, want 60", f.Alone>>20)
	}
	peak := f.At(32).Peak
	if low, high := f.Spread(32, peak); peak>>20 != 160 || low > peak || high>>20 < 220 {
		t.Errorf("%d MiB, %d to %d, want 160, to 220 or more", peak>>20, low>>20, high>>20)
	}
	var page bytes.Buffer
	if err := f.Write(&page, []float64{32}, Limits{}, Options{Width: 1000}); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"37.5% of the bytes are tensors that only the recording of 16 has", "32        160 MiB  155 MiB to 220 MiB ", "A third one, such as of 24, would."} {
		if !strings.Contains(page.String(), w) {
			t.Errorf("%q is not in\n%s", w, page.String())
		}
	}
	// With a third recording two of them say how it grows.
	f, err = NewFit([]Measured{{8, sized(100)}, {16, sized(100, 60)}, {32, sized(100, 120)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := f.At(64).Allocated >> 20; got != 340 || f.Alone != 0 {
		t.Errorf("%d MiB at 64, want 340; %d bytes alone", got, f.Alone)
	}
}
