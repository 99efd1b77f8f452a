package probes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	records "github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

const (
	declareTensor = "void reportMemoryUsageToProfiler(void *, int64_t, unsigned long, unsigned long, Device)"
	// made and freed are calls of it, with the totals that go with them.
	helpTensors = "unsigned long held = 1 << 30, out = 0;" +
		"auto made = [&](unsigned long at, long n) { out += n; c10::reportMemoryUsageToProfiler((void *)at, n, out, held, {1, 3}); };" +
		"auto freed = [&](unsigned long at, long n) { out -= n; c10::reportMemoryUsageToProfiler((void *)at, -n, out, held, {1, 3}); };"
)

// tellTensors returns the events of a program that makes and frees tensors, as text,
// and its tracer.
func tellTensors(t *testing.T, opts Options, call string) (string, *trace) {
	t.Helper()
	opts.Tensors = true
	tr, end := heldTorch(t, opts, declareTensor, helpTensors+call)
	end()
	var out []string
	for _, e := range tr.drain() {
		switch {
		case e.Op == event.OpExit:
			continue
		case !e.Op.Tensor() || (e.Stack != 0) != (e.Op == event.OpTensorAlloc) || e.Device != 3:
			t.Errorf("%+v", e)
		}
		name := map[event.Op]string{event.OpTensorAlloc: "made", event.OpTensorFree: "freed", event.OpSegmentSeen: "held"}[e.Op]
		out = append(out, fmt.Sprintf("%s %x %d of %d", name, e.Addr, e.Size, e.Handle))
	}
	return strings.Join(out, "; "), tr
}

// wantAllocator checks what the kernel side knows of the only allocator.
func (tr *trace) wantAllocator(want records.Allocator) {
	tr.Helper()
	got, err := tr.Allocators()
	if err != nil || len(got) != 1 {
		tr.Fatalf("%+v, %v", got, err)
	}
	want.Process, want.Device = got[0].Process, 3
	if got[0] != want {
		tr.Errorf("%+v, want %+v", got[0], want)
	}
}

// The tracer reports a tensor outside the sample neither when it is made nor when it is
// freed, but counts it. It reports once that the allocator holds memory.
func TestTensorsOutsideSample(t *testing.T) {
	got, tr := tellTensors(t, Options{TensorOptions: TensorOptions{TensorSample: MaxTensorSample}}, // one in 400,000 runs draws a tensor
		"made(0x1000, 1023); made(0x2000, 1024); made(0x3000, 512); freed(0x2000, 1024); freed(0x1000, 1023);")
	if want := "held 1000 1023 of 1023"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	tr.wantAllocator(records.Allocator{Allocated: 512, Reserved: 1 << 30,
		Made: records.Tally{Count: 3, Bytes: 2559}, Freed: records.Tally{Count: 2, Bytes: 2047}})
	tr.wantLoss(nil)
}

// Of a sample the frees of what is in it are told, and no others. What is handed out
// where a sampled tensor was, whose end was missed, ends that one.
func TestTensorSample(t *testing.T) {
	const everything = 1 // a tensor of 512 bytes is left out once in 10^222
	got, tr := tellTensors(t, Options{TensorOptions: TensorOptions{TensorSample: everything}},
		"made(0x1000, 4096); freed(0x2000, 4096); made(0x1000, 0); freed(0x1000, 0); made(0x3000, 512); freed(0x3000, 512);")
	if want := "made 1000 4096 of 4096; freed 1000 4096 of 0; made 3000 512 of 512; freed 3000 512 of 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	tr.wantLoss(nil)
}

// With any sample each free that comes is of a tensor that came, and the sums have all.
func TestTensorSampleFrees(t *testing.T) {
	const n = 20000
	got, tr := tellTensors(t, Options{TensorOptions: TensorOptions{TensorSample: 64 << 10}},
		fmt.Sprintf("for (long i = 0; i < %d; i++) made(0x1000000 + i * 4096, 4096); for (long i = 0; i < %[1]d; i++) freed(0x1000000 + i * 4096, 4096);", n))
	live := map[string]bool{}
	samples := 0
	for text := range strings.SplitSeq(got, "; ") {
		words := strings.Fields(text)
		switch {
		case words[0] == "held": // by the first one
		case words[0] == "made" && !live[words[1]]:
			live[words[1]] = true
			samples++
		case words[0] == "freed" && live[words[1]]:
			delete(live, words[1])
		default:
			t.Fatalf("%s", text)
		}
	}
	// 1 - exp(-1/16) of them, 1212, give or take 34: six times that and more.
	if len(live) != 0 || samples < 1000 || samples > 1424 {
		t.Errorf("%d samples, of which %d were never freed", samples, len(live))
	}
	all := records.Tally{Count: n, Bytes: n * 4096}
	tr.wantAllocator(records.Allocator{Allocated: 0, Reserved: 1 << 30, Made: all, Freed: all})
	tr.wantLoss(nil)
}

// What finds no room in the kernel side's tables is counted, and its free not told.
func TestTensorTablesFull(t *testing.T) {
	opts := Options{TensorOptions: TensorOptions{TensorSample: 1}, samples: 2}
	got, tr := tellTensors(t, opts, "made(0x1000, 4096); made(0x2000, 4096); made(0x3000, 4096); freed(0x3000, 4096); freed(0x1000, 4096); made(0x4000, 4096);")
	if want := "made 1000 4096 of 4096; made 2000 4096 of 8192; freed 1000 4096 of 4096; made 4000 4096 of 8192"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	tr.wantLoss(map[string]uint64{"tensor_samples_full": 1})

	opts = Options{TensorOptions: TensorOptions{TensorSample: 1}, allocators: 1}
	got, tr = tellTensors(t, opts, "made(0x1000, 4096); c10::reportMemoryUsageToProfiler((void *)0x2000, 4096, 1, 2, {1, 4});")
	if want := "made 1000 4096 of 4096"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	tr.wantLoss(map[string]uint64{"tensor_allocators_full": 1})
}

// What is kept of a process goes when it has ended.
func TestForgetTensors(t *testing.T) {
	_, tr := tellTensors(t, Options{TensorOptions: TensorOptions{TensorSample: 1}}, "made(0x1000, 4096); made(0x2000, 4096);")
	all, _ := tr.Allocators()
	other := all[0].Process
	other.PID++
	size := func(name string) (n int) {
		key, value := make([]byte, tr.kernel.coll.Maps[name].KeySize()), make([]byte, tr.kernel.coll.Maps[name].ValueSize())
		for i := tr.kernel.coll.Maps[name].Iterate(); i.Next(&key, &value); {
			n++
		}
		return n
	}
	for _, x := range []struct {
		id   event.Process
		left [2]int
	}{{other, [2]int{1, 2}}, {all[0].Process, [2]int{0, 0}}} {
		tr.ForgetTensors(x.id)
		if got := [2]int{size("allocators"), size("samples")}; got != x.left {
			t.Errorf("%v are left, want %v", got, x.left)
		}
	}
}
