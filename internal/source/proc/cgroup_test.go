package proc

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestParseCgroups(t *testing.T) {
	for text, want := range map[string][]Cgroup{
		"":                           nil,
		"0::/\n":                     {{"", "/"}},
		"0::/../../a b:c\n":          {{"", "/../../a b:c"}},
		"0::/gone.scope (deleted)\n": {{"", "/gone.scope"}},
		"12:cpu,cpuacct:/docker/1\n1:name=systemd:/x\n0::/y": {
			{"cpu,cpuacct", "/docker/1"}, {"name=systemd", "/x"}, {"", "/y"},
		},
		"no line\n0:\n0::\n0::relative\n\n0::/after\n": {{"", "/after"}},
	} {
		if got := parseCgroups([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestCgroups(t *testing.T) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	p := sleeper(t, "grouped")
	got, err := Cgroups(p.Process.Pid)
	if err != nil || len(got) == 0 || len(got) != strings.Count(string(text), "\n") {
		t.Errorf("%q, %v, but this process, which began it, is in %q", got, err, text)
	}
	if _, err := Cgroups(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a process that is gone: %v", err)
	}
}

func FuzzParseCgroups(f *testing.F) {
	for _, s := range []string{"0::/\n", "4:memory:/a/b\n0::/x (deleted)", "::/", "\n:\n::\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		size := 0
		for _, g := range parseCgroups(b) {
			if !strings.HasPrefix(g.Path, "/") || strings.Contains(g.Path, "\n") || strings.ContainsAny(g.Hierarchy, ":\n") {
				t.Errorf("%q", g)
			}
			size += len(g.Hierarchy) + len(g.Path)
		}
		if size > len(b) {
			t.Errorf("%d bytes of %d", size, len(b))
		}
	})
}
