package symbolize

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"unsafe"
)

// Against a model that looks at every symbol: of those that cover an address,
// the one that starts last, then the one of the higher rank.
func TestFlattenLikeModel(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for round := range 2000 {
		var syms []symbol
		used := make(map[[3]uint64]bool)
		for i := range random.IntN(12) {
			start := random.Uint64N(40)
			s := symbol{start: start, end: start + 1 + random.Uint64N(20), offset: uint32(i + 1)}
			s.rank = rankSized | rankFunction | uint8(random.IntN(3))<<1
			if key := [3]uint64{s.start, uint64(s.rank)}; !used[key] {
				used[key] = true
				syms = append(syms, s)
			}
		}
		slices.SortFunc(syms, func(a, b symbol) int {
			return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.rank, b.rank))
		})
		spans := flatten(slices.Clone(syms))
		for i := 1; i < len(spans); i++ {
			if spans[i].start <= spans[i-1].start {
				t.Fatalf("round %d: spans out of order: %v", round, spans)
			}
		}
		for at := range uint64(64) {
			var want nameRef
			for _, s := range syms { // in order of preference
				if s.start <= at && at < s.end {
					want = s.name()
				}
			}
			var got nameRef
			for _, sp := range spans {
				if sp.start <= at {
					got = sp.name
				}
			}
			if got != want {
				t.Fatalf("round %d: at %d got %v, want %v\nsymbols %v\nspans %v", round, at, got, want, syms, spans)
			}
		}
	}
}

// A table by hand: what is preferred where several symbols fit.
func TestSymbolChoice(t *testing.T) {
	const (
		function = rankSized | rankFunction
		label    = 0
	)
	type sym struct {
		name       string
		start, end uint64
		rank       uint8
	}
	for _, c := range []struct {
		name string
		syms []sym
		want map[uint64]string
	}{
		{"global before weak before local", []sym{{"l", 16, 32, function}, {"w", 16, 32, function | rankWeak}, {"g", 16, 32, function | rankGlobal}}, map[uint64]string{16: "g", 31: "g", 32: "", 15: ""}},
		{"fewer underscores", []sym{{"__libc_malloc", 16, 32, function | rankGlobal}, {"malloc", 16, 32, function | rankGlobal}}, map[uint64]string{20: "malloc"}},
		{"first in the alphabet", []sym{{"_ZN1AC2Ev", 16, 32, function}, {"_ZN1AC1Ev", 16, 32, function}}, map[uint64]string{20: "_ZN1AC1Ev"}},
		{"function before label", []sym{{"label", 20, 20, label}, {"f", 16, 32, function}}, map[uint64]string{20: "f", 31: "f"}},
		{"label after a function", []sym{{"label", 40, 40, label}, {"f", 16, 32, function}}, map[uint64]string{31: "f", 35: "", 40: "label", 63: "label", 64: ""}},
		{"without a size, to the next", []sym{{"a", 16, 16, rankFunction}, {"b", 24, 32, function}}, map[uint64]string{23: "a", 24: "b", 32: ""}},
		{"without a size, to the end of the section", []sym{{"a", 16, 16, rankFunction}, {"b", 100, 108, function}}, map[uint64]string{63: "a", 64: "", 100: "b"}},
		{"nested", []sym{{"outer", 16, 48, function}, {"inner", 24, 32, function}}, map[uint64]string{20: "outer", 24: "inner", 31: "inner", 32: "outer", 47: "outer"}},
		{"symbol table before dynamic", []sym{{"dyn", 16, 32, function | rankGlobal}, {"sym", 16, 32, function | rankGlobal | rankSymtab}}, map[uint64]string{16: "sym"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, order := range []bool{false, true} {
				strs := []byte{0}
				b := &builder{code: []codeRange{{16, 64}, {100, 120}}}
				for _, s := range c.syms {
					b.symbols = append(b.symbols, symbol{s.start, s.end, uint32(len(strs)), 0, s.rank})
					strs = append(append(strs, s.name...), 0)
				}
				if order {
					slices.Reverse(b.symbols)
				}
				b.tables = []strtab{{bytes.NewReader(strs), 0, int64(len(strs))}}
				tab := b.build()
				for at, want := range c.want {
					if got, _ := tab.lookup(at); got != want {
						t.Errorf("at %d got %q, want %q", at, got, want)
					}
				}
			}
		})
	}
}

// To index a symbol takes at most 128 bytes, and 36 of a function stay. Where slices grew as symbols
// came, it took more than 300, and 48 stayed.
func TestIndexMemory(t *testing.T) {
	const functions = 50_000
	dir := t.TempDir()
	source, library := filepath.Join(dir, "many.s"), filepath.Join(dir, "many.so")
	text := []byte(".text\n")
	for i := range functions {
		text = fmt.Appendf(text, ".globl f%d\n.type f%[1]d, %%function\nf%[1]d: nop\n.size f%[1]d, . - f%[1]d\n.p2align 4\n", i)
	}
	if err := os.WriteFile(source, text, 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "gcc", "-shared", "-nostdlib", "-o", library, source)
	im := openFile(t, newSymbolizer(t, Config{}), library)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	im.resolve(0, &mapping{})
	runtime.ReadMemStats(&after)
	if n := len(im.syms.spans); n < functions {
		t.Fatalf("%d spans of %d functions", n, functions)
	}
	// Each is in .symtab and in .dynsym.
	if each := (after.TotalAlloc - before.TotalAlloc) / (2 * functions); each > 128 {
		t.Errorf("%d bytes were allocated for a symbol", each)
	}
	if stay := cap(im.syms.spans) * int(unsafe.Sizeof(span{})) / functions; stay > 36 {
		t.Errorf("%d bytes stay of a function", stay)
	}
}
