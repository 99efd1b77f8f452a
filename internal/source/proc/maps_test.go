package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// collect returns what parseMaps yields.
func collect(text string) (out []Mapping, err error) {
	for m, err := range parseMaps(strings.NewReader(text)) {
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
	return out, nil
}

func TestParseMaps(t *testing.T) {
	const text = `00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon
00651000-00652000 r--p 00051000 08:02 173521      /usr/bin/dbus-daemon
00652000-00653000 rwxp 00052000 08:02 173521      /usr/bin/dbus-daemon
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7f0000002000-7f0000003000 r-xp 00001000 fd:01 42                 /tmp/with space\012and line (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
`
	got, err := collect(text)
	if err != nil {
		t.Fatal(err)
	}
	want := []Mapping{
		{0x400000, 0x452000, 0, FileID{unix.Mkdev(8, 2), 173521}, "/usr/bin/dbus-daemon"},
		{0x652000, 0x653000, 0x52000, FileID{unix.Mkdev(8, 2), 173521}, "/usr/bin/dbus-daemon"},
		{0x7f0000000000, 0x7f0000001000, 0, FileID{}, ""},
		{0x7f0000002000, 0x7f0000003000, 0x1000, FileID{unix.Mkdev(0xfd, 1), 42}, "/tmp/with space\nand line (deleted)"},
		{0x7ffd00000000, 0x7ffd00002000, 0, FileID{}, "[vdso]"},
		{0xffffffffff600000, 0xffffffffff601000, 0, FileID{}, "[vsyscall]"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for i, file := range []bool{true, true, false, true, false, false} {
		if got[i].HasFile() != file {
			t.Errorf("%+v has a file: want %v", got[i], file)
		}
	}
	if got[3].Name() != "/tmp/with space\nand line" || !got[3].Holds(0x7f0000002fff) || got[3].Holds(0x7f0000003000) {
		t.Errorf("%+v", got[3])
	}
	for _, bad := range []string{
		"x", "1-2 r-xp 0 0:0", "2-1 r-xp 0 0:0 0", "1-g r-xp 0 0:0 0", "1-2 r-x 0 0:0 0", "1-2 r-xp 0 00 0",
		"1-3 r-xp 0 0:0 0\n2-4 r-xp 0 0:0 0", "../../etc-2 r-xp 0 0:0 0 /lib", strings.Repeat("x", 2*maxLine),
	} {
		if got, err := collect(bad + "\n"); err == nil {
			t.Errorf("%.80q gave %+v, want an error", bad, got)
		}
	}
}

// Mappings without end are an error, not a part of them.
func TestTooManyMappings(t *testing.T) {
	var b bytes.Buffer
	for at := 1; b.Len() < maxMaps; at++ {
		fmt.Fprintf(&b, "%x-%x r-xp 0 8:1 1 /%s\n", at, at+1, strings.Repeat("x", 4000))
	}
	got, err := collect(b.String())
	if !errors.Is(err, ErrTooLarge) || len(got) < 1000 {
		t.Errorf("%d mappings, %v, want ErrTooLarge", len(got), err)
	}
	// Equal paths are kept once.
	if n := testing.AllocsPerRun(1, func() { collect(b.String()) }); n > float64(10*len(got)) {
		t.Errorf("%v allocations", n)
	}
}

func TestMappings(t *testing.T) {
	var own int
	for m, err := range Mappings(os.Getpid()) {
		if err != nil {
			t.Fatal(err)
		}
		if exe, _ := os.Executable(); m.Name() == exe {
			own++
		}
	}
	if own == 0 {
		t.Error("this program is not among its own mappings")
	}
	for _, err := range Mappings(1 << 30) {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("mappings of no process: %v", err)
		}
	}
	const kthreadd = 2
	if Comm(kthreadd) == "kthreadd" {
		for m, err := range Mappings(kthreadd) {
			t.Errorf("a kernel thread maps %+v, %v", m, err)
		}
	}
}

func FuzzMaps(f *testing.F) {
	f.Add("00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon\n")
	f.Add("7f0000000000-7f0000001000 rwxp 00000000 00:00 0\n7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]")
	f.Add("0-../.. r-xp 0 0 0 /x")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := collect(text)
		for i, m := range got {
			if m.End <= m.Start || i > 0 && m.Start < got[i-1].End {
				t.Errorf("mappings overlap: %+v (%v)", got, err)
			}
		}
	})
}
