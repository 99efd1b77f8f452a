package record

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/holdertest"
)

var heapProcess = event.Process{PID: 4711, Start: event.StartUnit}

// smallHeap is a heap of one storage or two, as records.
func smallHeap(seed uint64) (out []Record) {
	r := holdertest.Training()
	r.Storages, r.Retainers = r.Storages[seed:seed+1+seed%2], r.Retainers[:1]
	for _, h := range Heaps(heapProcess, r) {
		out = append(out, h)
	}
	return out
}

// joined puts the parts of a reading together.
func joined(t *testing.T, parts []Record) *holder.Reading {
	t.Helper()
	var all *holder.Reading
	for i, r := range parts {
		h := r.(*Heap)
		if more := i < len(parts)-1; h.More != more || h.Process != heapProcess {
			t.Fatalf("part %d of %d: more is %v, of process %v", i, len(parts), h.More, h.Process)
		}
		if all == nil {
			all = h.Reading
			continue
		}
		all.Storages = append(all.Storages, h.Reading.Storages...)
		all.Modules = append(all.Modules, h.Reading.Modules...)
		all.Retainers = append(all.Retainers, h.Reading.Retainers...)
		all.Loss = append(all.Loss, h.Reading.Loss...)
	}
	return all
}

func TestHeapRoundTrip(t *testing.T) {
	many := holdertest.Training()
	for i := range 20_000 {
		s := many.Storages[i%40]
		s.Address, s.Holder = uint64(i)<<20, fmt.Sprintf("model.layers[%d].%s", i, strings.Repeat("w", i%300))
		many.Storages = append(many.Storages, s)
		many.Modules = append(many.Modules, holder.Module{Address: uint64(i) << 16, Path: s.Holder, Training: i%2 == 0, Checkpoints: i%3 == 0})
	}
	extreme := &holder.Reading{Refused: "no", Begin: math.MaxUint64, End: 3, Objects: math.MaxUint64, Storages: []holder.Storage{
		{Address: math.MaxUint64, Bytes: math.MaxUint64, Device: math.MinInt32, Role: holder.NumRoles - 1, Holders: math.MaxInt, Tensors: math.MaxInt,
			Shape: []int64{math.MinInt64, math.MaxInt64, 0, -1}, Cycle: true, RequiresGrad: true}, {},
	}, Modules: []holder.Module{{Address: math.MaxUint64}, {}}, Retainers: []holder.Retainer{{Items: math.MaxInt, Retained: math.MaxUint64, Graph: math.MaxUint64, Storages: math.MaxInt}}}
	for name, want := range map[string]*holder.Reading{"training": holdertest.Training(), "later": holdertest.Later(), "many": many, "extreme": extreme, "empty": {}} {
		t.Run(name, func(t *testing.T) {
			var records []Record
			for _, h := range Heaps(heapProcess, want) {
				if c := encode(h); c.bad || len(c.buf) > heapPart+heapPart/8 {
					t.Fatalf("a part of %d bytes, bad %v", len(c.buf), c.bad)
				}
				records = append(records, h)
			}
			r := newTestReader(t, encoded(t, maxPayload, records...))
			if d := cmp.Diff(want, joined(t, readAll(t, r)), cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
			sound(t, r)
		})
	}
}

// Blocks of version 13 do not say which pool they are of: it may be a private one.
func TestOldBlocks(t *testing.T) {
	want := *BlocksOf(heapProcess, someBlocks)[0]
	w := Fields{}
	visitOldBlocks(&w, &want)
	want.Blocks = slices.Clone(want.Blocks)
	for i := range want.Blocks {
		b := &want.Blocks[i]
		b.Private, b.Small, b.Expandable = holder.UnknownPool, false, false
	}
	r, got := Fields{reading: true, buf: w.buf, shared: newKnown(1 << 20)}, Blocks{}
	visitOldBlocks(&r, &got)
	if d := cmp.Diff(want, got); d != "" || r.bad || r.left() > 0 {
		t.Errorf("bad %v, %d bytes left (-want +got):\n%s", r.bad, r.left(), d)
	}
}

// What a program may choose is cut to what fits in a block.
func TestHeapOfAnyText(t *testing.T) {
	long := strings.Repeat("\xff", 1<<20)
	s := holder.Storage{Holder: long, DType: long, Class: long, Node: long, Module: long, More: slices.Repeat([]string{long}, 99), Shape: make([]int64, 1000), Role: 99, Holders: -1, Tensors: -1}
	r := &holder.Reading{Runtime: long, Framework: long, Refused: long, Storages: slices.Repeat([]holder.Storage{s}, 50), Modules: slices.Repeat([]holder.Module{{Path: long}}, 50),
		Retainers: slices.Repeat([]holder.Retainer{{Holder: long, Class: long, Items: -1, Storages: -1}}, 50)}
	var records []Record
	for _, h := range Heaps(heapProcess, r) {
		records = append(records, h)
	}
	got := joined(t, readAll(t, newTestReader(t, encoded(t, maxPayload, records...))))
	if len(got.Storages) != 50 || len(got.Retainers) != 50 || got.Storages[49].Holder != long[:maxHolder] || len(got.Storages[49].More) != maxHolders ||
		len(got.Modules) != 50 || got.Storages[49].Module != long[:maxHolder] || got.Modules[49].Path != long[:maxHolder] {
		t.Errorf("%d storages, %d retainers", len(got.Storages), len(got.Retainers))
	}
}

// A Heap beyond the limits is neither written nor read.
func TestHeapUnfit(t *testing.T) {
	unfit := map[string]*holder.Reading{
		"none":       nil,
		"many":       {Storages: make([]holder.Storage, MaxHeapEntries), Loss: smallHeap(0)[0].(*Heap).Reading.Loss},
		"role":       {Storages: []holder.Storage{{Role: holder.NumRoles}}},
		"dimensions": {Storages: []holder.Storage{{Shape: make([]int64, maxDimensions+1)}}},
		"holders":    {Storages: []holder.Storage{{More: make([]string, maxHolders+1)}}},
		"negative":   {Storages: []holder.Storage{{Tensors: -1}}},
		"items":      {Retainers: []holder.Retainer{{Items: -1}}},
	}
	for name, r := range unfit {
		c := encode(&Heap{Reading: r})
		if !c.bad {
			t.Errorf("%s would be written", name)
		}
		d := Fields{reading: true, shared: newKnown(1 << 20)}
		d.begin(c.buf)
		if d.next(); r != nil && !d.bad {
			t.Errorf("%s was read", name)
		}
	}
}
