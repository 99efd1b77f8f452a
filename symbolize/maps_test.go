package symbolize

import (
	"slices"
	"strings"
	"testing"
)

func TestParseMaps(t *testing.T) {
	const text = `00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon
00651000-00652000 r--p 00051000 08:02 173521      /usr/bin/dbus-daemon
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7f0000002000-7f0000003000 r-xp 00001000 fd:01 42                 /tmp/with space\012and line (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
`
	got, err := parseMaps(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []mapsEntry{
		{0x400000, 0x452000, 0, 8, 2, 173521, "/usr/bin/dbus-daemon"},
		{0x7f0000000000, 0x7f0000001000, 0, 0, 0, 0, ""},
		{0x7f0000002000, 0x7f0000003000, 0x1000, 0xfd, 1, 42, "/tmp/with space\nand line (deleted)"},
		{0x7ffd00000000, 0x7ffd00002000, 0, 0, 0, 0, "[vdso]"},
		{0xffffffffff600000, 0xffffffffff601000, 0, 0, 0, 0, "[vsyscall]"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, bad := range []string{"x", "1-2 r-xp 0 0:0", "2-1 r-xp 0 0:0 0", "1-g r-xp 0 0:0 0", "1-2 r-x 0 0:0 0", "1-2 r-xp 0 00 0", "1-3 r-xp 0 0:0 0\n2-4 r-xp 0 0:0 0"} {
		if got, err := parseMaps(strings.NewReader(bad + "\n")); err == nil {
			t.Errorf("%q gave %+v, want an error", bad, got)
		}
	}
}
