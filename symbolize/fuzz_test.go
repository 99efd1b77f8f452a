package symbolize

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

func FuzzPerfMap(f *testing.F) {
	f.Add("7f00 40 name\n0x8000 0x10 py::f:/a b.py\r\n")
	f.Add("zz 40 name\n1 1\n1 ffffffffffffffff x\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		entries, read := parsePerfMap(strings.NewReader(text), 100)
		if read > int64(len(text)) || read > 0 && text[read-1] != '\n' && !strings.Contains(text, strings.Repeat("x", 100)) && read%maxName != 0 {
			t.Errorf("read %d of %q", read, text)
		}
		if len(entries) > 100 {
			t.Errorf("%d entries", len(entries))
		}
		for _, e := range entries {
			if e.size == 0 || e.start+e.size < e.start || e.name == "" {
				t.Errorf("bad entry %+v", e)
			}
		}
	})
}

// FuzzELF is about panics, hangs and memory. Its corpus are small programs
// with symbols and debug information.
func FuzzELF(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		show := func() string {
			r := bytes.NewReader(data)
			e, err := proc.ReadELF(r, int64(len(data)))
			if err != nil {
				return err.Error()
			}
			var out strings.Builder
			fmt.Fprintln(&out, e.BuildID())
			link, crc, ok := debugLink(e.File)
			fmt.Fprintln(&out, link, crc, ok)
			b := &builder{}
			b.add(e.File, r)
			tab := b.build()
			for i, s := range tab.spans {
				if i > 0 && s.start <= tab.spans[i-1].start {
					t.Fatalf("spans out of order: %v", tab.spans)
				}
			}
			x, err := newDwarfIndex(e.File, 1<<20)
			goTab := loadGo(e.File)
			for _, p := range e.Progs {
				for step := range uint64(16) {
					at, ok := virtual(e.File, p.Off+step*p.Filesz/16)
					name, _ := tab.lookup(at)
					fmt.Fprintln(&out, at, ok, readable(name))
					if x != nil && err == nil {
						fmt.Fprintln(&out, x.lookup(at, name))
					}
					goTab.lookup(at)
				}
			}
			return out.String()
		}
		if a, b := show(), show(); a != b {
			t.Errorf("two readings differ:\n%s\n%s", a, b)
		}
	})
}
