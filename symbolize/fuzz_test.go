package symbolize

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func FuzzMaps(f *testing.F) {
	f.Add("00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon\n")
	f.Add("7f0000000000-7f0000001000 rwxp 00000000 00:00 0\n7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]")
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := parseMaps(strings.NewReader(text))
		for i, e := range entries {
			if e.limit <= e.start || i > 0 && e.start < entries[i-1].limit {
				t.Errorf("entries overlap: %+v (%v)", entries, err)
			}
		}
	})
}

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
// with symbols, stubs and debug information.
func FuzzELF(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		show := func() string {
			r := bytes.NewReader(data)
			e, err := openELF(r, int64(len(data)))
			if err != nil {
				return err.Error()
			}
			var out strings.Builder
			fmt.Fprintln(&out, buildID(e))
			link, crc, ok := debugLink(e)
			fmt.Fprintln(&out, link, crc, ok)
			b := &builder{}
			b.add(e, r)
			b.addPLT(e, r)
			tab := b.build()
			for i, s := range tab.spans {
				if i > 0 && s.start <= tab.spans[i-1].start {
					t.Fatalf("spans out of order: %v", tab.spans)
				}
			}
			x, err := newDwarfIndex(e, 1<<20)
			goTab := loadGo(e)
			for _, p := range e.Progs {
				for step := range uint64(16) {
					at, ok := virtual(e, p.Off+step*p.Filesz/16)
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
