package probes

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testcuda"
)

func TestSplitList(t *testing.T) {
	for text, want := range map[string][][2]int{
		"":                     nil,
		"0\n":                  {{0, 0}},
		"0-3,7\n":              {{0, 3}, {7, 7}},
		"0,2-2":                {{0, 0}, {2, 2}},
		"3-1":                  nil,
		"-1,x,1-y,2,":          {{2, 2}},
		"99999999999999999999": nil,
	} {
		if got := splitList(text); !slices.Equal(got, want) {
			t.Errorf("splitList(%q) = %v, want %v", text, got, want)
		}
	}
}

func TestParseExecutable(t *testing.T) {
	for line, want := range map[string]string{
		"7f00-7f10 r-xp 00001000 08:01 123    /usr/lib/libcuda.so.1":           "7f00-7f10 /usr/lib/libcuda.so.1",
		"7f00-7f10 r-xp 00001000 08:01 123    /a b/libcuda.so.1":               "7f00-7f10 /a b/libcuda.so.1",
		"7f00-7f10 r-xp 00001000 08:01 123    /usr/lib/libcuda.so.1 (deleted)": "7f00-7f10 /usr/lib/libcuda.so.1",
		"7f00-7f10 r--p 00001000 08:01 123    /usr/lib/libcuda.so.1":           "",
		"7f00-7f10 r-xp 00000000 00:00 0      [vdso]":                          "",
		"7f00-7f10 r-xp 00000000 00:00 0 ":                                     "",
		"../../etc-7f10 r-xp 00000000 00:00 0 /lib":                            "",
		"7f00 r-xp 00001000 08:01 123 /lib":                                    "",
		"":                                                                     "",
	} {
		span, name, ok := parseExecutable(line)
		got := ""
		if ok {
			got = span + " " + name
		}
		if got != want {
			t.Errorf("parseExecutable(%q) = %q, want %q", line, got, want)
		}
	}
}

// A span becomes part of a path: nothing but hexadecimal numbers may be in it.
func FuzzParseExecutable(f *testing.F) {
	f.Add("7f00-7f10 r-xp 00001000 08:01 123    /usr/lib/libcuda.so.1 (deleted)")
	f.Add("0-../.. r-xp 0 0 0 /x")
	f.Fuzz(func(t *testing.T, line string) {
		span, name, ok := parseExecutable(line)
		if !ok {
			return
		}
		if strings.Trim(span, "0123456789abcdefABCDEF-") != "" || strings.Count(span, "-") != 1 {
			t.Errorf("span %q of %q", span, line)
		}
		if !strings.HasPrefix(name, "/") {
			t.Errorf("name %q of %q", name, line)
		}
	})
}

func TestLibraryLevel(t *testing.T) {
	for name, want := range map[string]string{
		"/usr/lib/libcuda.so.1":                 "driver",
		"/usr/lib/libcuda.so.580.159.04":        "driver",
		"/usr/lib/libcuda-d0da41ae.so.1":        "driver",
		"/x/libcudart.so.13":                    "runtime",
		"/x/torch/lib/libcudart-d0da41ae.so.12": "runtime",
		"/x/libcudadebugger.so.1":               "",
		"/x/libcudart.txt":                      "",
		"/libcuda.so.1/libother.so":             "",
		"/x/liblibcuda.so.1":                    "",
		"":                                      "",
	} {
		got := ""
		if level, ok := libraryLevel(name); ok {
			got = map[Level]string{Driver: "driver", Runtime: "runtime"}[level]
		}
		if got != want {
			t.Errorf("libraryLevel(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestSymbolOffsets(t *testing.T) {
	kit := testcuda.Get(t)
	all := func(string) bool { return true }
	shared, err := symbolOffsets(kit.LibCUDA, all)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("nm", "-D", "--defined-only", kit.LibCUDA).Output()
	if err != nil {
		t.Fatal(err)
	}
	functions := strings.Count(string(out), " T ")
	if len(shared) != functions || functions < 90 {
		t.Errorf("%d functions, nm says %d", len(shared), functions)
	}
	static, err := symbolOffsets(kit.Path(testcuda.WorkloadStatic), func(n string) bool { return n == "cudaMalloc" })
	if err != nil || len(static) != 1 {
		t.Errorf("static libcudart: %v, %v", static, err)
	}
	stripped, err := symbolOffsets(kit.Path(testcuda.WorkloadStripped), func(n string) bool { return n == "cudaMalloc" })
	if err != nil || len(stripped) != 0 {
		t.Errorf("stripped libcudart: %v, %v", stripped, err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := exec.Command("mkfifo", fifo).Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := symbolOffsets(fifo, all); err == nil {
		t.Error("a FIFO has symbols")
	}
}

// elfSeed returns a small library: the fuzzer's mutations of a large one would
// seldom hit its headers.
func elfSeed(tb testing.TB) []byte {
	tb.Helper()
	text, err := os.ReadFile("testdata/small.so")
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

// Whatever a process names libcuda.so.1: no panic, and only offsets within the
// executable part of the file.
func FuzzSymbolOffsets(f *testing.F) {
	seed := elfSeed(f)
	f.Add(uint32(0), uint64(0), uint32(len(seed)))
	// The header's tables and counts, one after the other.
	for _, at := range []uint32{4, 5, 16, 18, 24, 32, 40, 52, 54, 56, 58, 60, 62} {
		f.Add(at, uint64(1<<64-1), uint32(len(seed)))
		f.Add(at, uint64(0), uint32(len(seed)))
	}
	f.Add(uint32(0), binary.LittleEndian.Uint64(seed), uint32(64))
	path := filepath.Join(f.TempDir(), "libcuda.so.1")
	f.Fuzz(func(t *testing.T, at uint32, word uint64, size uint32) {
		text := bytes.Clone(seed[:min(int(size), len(seed))])
		if len(text) >= 8 {
			binary.LittleEndian.PutUint64(text[int(at)%(len(text)-7):], word)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		offsets, err := symbolOffsets(path, func(string) bool { return true })
		if err != nil && len(offsets) != 0 {
			t.Errorf("%v, and %d symbols", err, len(offsets))
		}
	})
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
		{"mipmap of layers", 4, 4, 3, 0x01, 1, arrayLayered, 2, (16 + 4) * 3},
		{"more levels than bits", 1, 1, 0, 0x01, 1, 0, 1 << 40, 64},
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
	text, err := os.ReadFile("../bpf/gpumemtrace.h")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "enum gm_loss {")
	list, _, _ = strings.Cut(list, "}")
	n := strings.Count(list, "GM_LOSS_") + strings.Count(list, "GM_INFO_") - 1 // GM_LOSS_MAX
	if n != len(kernelCounters) {
		t.Errorf("%d counters here, %d in the kernel side", len(kernelCounters), n)
	}
	for i, want := range []string{"RING_FULL", "RING_STACK", "NO_THREAD", "CALLS_FULL", "NO_ENTRY", "UNREADABLE", "NO_STACK", "LIST_LONG", "TARGETS_FULL", "NESTED"} {
		fields := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '\n' || r == '\t' })
		if i >= len(fields) || !strings.HasSuffix(fields[i], want) {
			t.Errorf("counter %d is not %s in %q", i, want, fields)
		}
	}
	seen := map[string]bool{}
	for _, c := range kernelCounters {
		if seen[c.Name] || c.Name == "" {
			t.Errorf("counter %q twice, or without a name", c.Name)
		}
		seen[c.Name] = true
	}
}

// A row's slots fit, and the kernel side is told the same ones.
func TestPlans(t *testing.T) {
	for _, e := range Entries[1:] {
		k := e.plan.kernelRow(e.class)
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
