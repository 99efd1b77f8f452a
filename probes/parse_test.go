package probes

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

func TestLibraryLevel(t *testing.T) {
	for name, want := range map[string]string{
		"/usr/lib/libcuda.so.1":                 "driver",
		"/usr/lib/libcuda.so.580.159.04":        "driver",
		"/usr/lib/libcuda-d0da41ae.so.1":        "driver",
		"/x/libcudart.so.13":                    "runtime",
		"/x/torch/lib/libcudart-d0da41ae.so.12": "runtime",
		"/x/libcudadebugger.so.1":               "",
		"/usr/lib/libcuda.so.1 (deleted)":       "driver",
		"/x/libc10.so (deleted)":                "torch",
		"/x/torch/lib/libc10_cuda.so":           "torch_cuda",
		"/memfd:libcuda.so.1 (deleted)":         "",
		"/x/libcudart.txt":                      "",
		"/libcuda.so.1/libother.so":             "",
		"/x/liblibcuda.so.1":                    "",
		"":                                      "",
	} {
		got := ""
		if level, ok := libraryLevel((&proc.Mapping{Path: name}).Name()); ok {
			got = map[Level]string{Driver: "driver", Runtime: "runtime", Torch: "torch", TorchCUDA: "torch_cuda"}[level]
		}
		if got != want {
			t.Errorf("libraryLevel(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestMul(t *testing.T) {
	const most = 1<<63 - 1
	for _, c := range []struct {
		factors []uint64
		want    uint64
	}{
		{[]uint64{3, 5, 7}, 105},
		{[]uint64{1 << 40, 0, 1 << 40}, 0},
		{[]uint64{1 << 32, 1 << 31}, most},
		{[]uint64{1 << 32, 1 << 30, 2}, most},
		{[]uint64{1 << 63, 2}, most},
		{[]uint64{most, 1}, most},
	} {
		if got := mul(c.factors[0], c.factors[1:]...); got != c.want {
			t.Errorf("mul(%d) = %d, want %d", c.factors, got, c.want)
		}
	}
}

func TestArrayBytes(t *testing.T) {
	for _, c := range []struct {
		name                    string
		width, height, depth    uint64
		format, channels, flags uint32
		levels                  uint64
		want                    uint64
	}{
		{"1D bytes", 100, 0, 0, 0x01, 1, 0, 1, 100},
		{"2D of two halves", 10, 3, 0, 0x10, 2, 0, 1, 10 * 3 * 4},
		{"3D of four floats", 10, 3, 5, 0x20, 4, 0, 1, 10 * 3 * 5 * 16},
		{"layered", 10, 0, 6, 0x02, 1, arrayLayered, 1, 10 * 6 * 2},
		{"sparse", 10, 3, 5, 0x20, 4, arraySparse, 1, 0},
		{"deferred", 10, 3, 5, 0x20, 4, arrayDeferred, 1, 0},
		{"mipmap of three levels", 8, 4, 0, 0x01, 4, 0, 3, (8*4 + 4*2 + 2*1) * 4},
		{"mipmap of a volume", 4, 4, 4, 0x01, 1, 0, 3, 64 + 8 + 1},
		{"mipmap of more levels than there are", 4, 2, 0, 0x01, 1, 0, 9, 8 + 2 + 1},
		{"mipmap of more levels than a layer has", 4, 4, 99, 0x01, 1, arrayLayered, 9, (16 + 4 + 1) * 99},
		{"mipmap of no level, which is one", 4, 4, 0, 0x01, 1, 0, 0, 16},
		{"mipmap of a cube's faces", 4, 4, 6, 0x01, 1, arrayCubemap, 2, (16 + 4) * 6},
		{"mipmap of layers", 4, 4, 3, 0x01, 1, arrayLayered, 2, (16 + 4) * 3},
		{"more levels than bits", 1, 1, 0, 0x01, 1, 0, 1 << 40, 1},
		{"BC1", 16, 8, 0, 0x91, 1, 0, 1, 4 * 2 * 8},
		{"BC7, ragged", 17, 9, 0, 0x9d, 1, 0, 1, 5 * 3 * 16},
		{"NV12", 16, 8, 0, formatNV12, 3, 0, 1, 192},
		{"UNORM_INT16X4", 5, 5, 0, 0xc5, 4, 0, 1, 200},
		{"no such format", 5, 5, 0, 0x7777, 2, 0, 1, 50},
		{"too large", 1 << 40, 1 << 40, 1, 0x20, 4, 0, 1, 1<<63 - 1},
	} {
		if got := arrayBytes(c.width, c.height, c.depth, c.format, c.channels, c.flags, c.levels); got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.want)
		}
	}
}

// The same names in the same order as the kernel side's.
func TestLossNames(t *testing.T) {
	text, err := os.ReadFile("../bpf/records.h")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "enum gm_loss {")
	list, _, _ = strings.Cut(list, "}")
	var got []string
	for i, name := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '\n' || r == '\t' }) {
		if i < len(kernelCauses) {
			name += " " + kernelCauses[i].Counter(0).Name
		}
		got = append(got, strings.TrimPrefix(name, "GM_LOSS_"))
	}
	want := []string{
		"RING_FULL events_ring_full", "RING_STACK stacks_ring_full", "NO_THREAD calls_no_thread_state",
		"CALLS_FULL calls_nested_too_deep", "NO_ENTRY calls_without_entry", "UNREADABLE arguments_unreadable",
		"NO_STACK stacks_failed", "LIST_LONG lists_truncated", "TARGETS_FULL targets_full", "NESTED calls_nested",
		"SIGNAL_STACK calls_on_signal_stack", "MAX",
	}
	if !slices.Equal(got, want) {
		t.Errorf("counters of the kernel side and here:\n%q\nwant\n%q", got, want)
	}
}

// A row's slots fit, and the kernel side is told the same ones.
func TestPlans(t *testing.T) {
	for _, e := range Entries[1:] {
		k := e.plan.kernelRow(e.class, runtime.GOARCH)
		if int(k.Class) != int(e.class) || int(k.Flags) != int(e.flags) {
			t.Errorf("%s: %+v", e.Symbol, k)
		}
		for i, c := range e.plan.captures {
			if c.present && (k.Captures[i] != kernelCapture{c.size, c.arg, c.off}) {
				t.Errorf("%s: capture %d is %+v, want %+v", e.Symbol, i, k.Captures[i], c)
			}
		}
		for _, c := range k.Captures[len(e.plan.captures):] {
			if c != (kernelCapture{Arg: 7}) {
				t.Errorf("%s: a capture that nobody asked for: %+v", e.Symbol, c)
			}
		}
	}
}
