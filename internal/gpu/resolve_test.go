package gpu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResolve(t *testing.T) {
	set := func(s string) Env { return Env{Visible: s, VisibleSet: true} }
	both := []int{0, 1}
	for _, tt := range []struct {
		name string
		e    Evidence
		want string
	}{
		{"nothing used", Evidence{Nodes: both, Opened: both}, "map[]"},
		{"all", Evidence{Nodes: both, Opened: both, Used: both, Listed: []string{u0, u1}}, "map[0:0 1:1]"},
		{"second by environment", Evidence{Env: set("1"), Nodes: both, Opened: []int{1}, Used: []int{0}, Listed: []string{u1}}, "map[0:1]"},
		{"swapped by environment", Evidence{Env: set("1,0"), Nodes: both, Opened: both, Used: []int{1}, Listed: []string{u0}}, "map[1:0]"},
		{"NVML in the process opened all", Evidence{Env: set("1"), Nodes: both, Opened: both, Used: []int{0}, Listed: []string{u1}}, "map[0:1]"},
		{"container with the second GPU", Evidence{Nodes: []int{1}, Opened: []int{1}, Used: []int{0}, Listed: []string{u1}}, "map[0:1]"},
		{"container, index in it", Evidence{Env: set("0"), Nodes: []int{1}, Opened: []int{1}, Used: []int{0}, Listed: []string{u1}}, "map[0:1]"},
		{"program set its own environment", Evidence{Nodes: both, Opened: []int{1}, Used: []int{0}, Listed: []string{u1}}, "map[0:1]"},
		{"own environment, NVML opened all", Evidence{Nodes: both, Opened: both, Used: []int{0}, Listed: []string{u1}}, "map[0:1]"},
		{"own environment, no list", Evidence{Nodes: both, Opened: []int{1}, Used: []int{0}}, "map[0:1]"},
		{"no list, one open", Evidence{Env: set("1"), Nodes: both, Opened: []int{1}, Used: []int{0}}, "map[0:1]"},
		{"no list, all open", Evidence{Nodes: both, Opened: both, Used: []int{0}}, "?"},
		{"no list, more open than shown", Evidence{Env: set("0"), Nodes: both, Opened: both, Used: []int{0}}, "?"},
		{"listed nowhere", Evidence{Nodes: both, Opened: both, Used: []int{0}, Listed: []string{}}, "?"},
		{"used beyond what is shown", Evidence{Env: set("0"), Nodes: both, Opened: both, Used: both, Listed: []string{u0, u1}}, "?"},
		{"listed beyond what is shown", Evidence{Env: set("0"), Nodes: both, Opened: both, Used: []int{0}, Listed: []string{u0, u1}}, "?"},
		{"CUDA not started", Evidence{Nodes: both, Used: []int{0}}, "?"},
		{"negative ordinal", Evidence{Nodes: both, Opened: both, Used: []int{-1}, Listed: []string{u0, u1}}, "?"},
	} {
		got, err := Resolve(twoGPUs(), tt.e)
		index := map[int]int{}
		for o, d := range got {
			index[o] = d.Index
		}
		s := fmt.Sprint(index)
		if errors.Is(err, ErrUnknown) {
			s = "?"
		}
		if s != tt.want {
			t.Errorf("%s: %s (%v), want %s", tt.name, s, err, tt.want)
		}
	}
}

func TestResolveMIG(t *testing.T) {
	instance := migGPUs()[0].Instances[1]
	e := Evidence{Nodes: []int{0, 1}, Opened: []int{0}, Used: []int{0}, Listed: []string{instance.UUID}}
	got, err := Resolve(migGPUs(), e) // several instances: only NVML's list can say
	if err != nil || got[0].Label() != "0:1" {
		t.Errorf("%v, %v", got, err)
	}
	e.Listed = nil // two instances share the device file
	if got, err := Resolve(migGPUs(), e); !errors.Is(err, ErrUnknown) {
		t.Errorf("%v, %v: want ErrUnknown", got, err)
	}
}

// fakeProc makes a /proc in which each pid has the given files open.
func fakeProc(t *testing.T, namespace string, open map[int][]string) procFS {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "self/ns"), 0o755))
	must(os.Symlink(namespace, filepath.Join(dir, "self/ns/pid")))
	for pid, files := range open {
		p := filepath.Join(dir, fmt.Sprint(pid))
		must(os.MkdirAll(filepath.Join(p, "fd"), 0o755))
		must(os.WriteFile(filepath.Join(p, "comm"), fmt.Appendf(nil, "p%d\n", pid), 0o644))
		for i, f := range files {
			must(os.Symlink(f, filepath.Join(p, "fd", fmt.Sprint(i))))
		}
	}
	return procFS(dir)
}

func TestProcFS(t *testing.T) {
	p := fakeProc(t, initialPIDNamespace, map[int][]string{
		11: {"/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia1 (deleted)",
			"/dev/nvidia+1", "/dev/nvidia99999999999999999999", "/dev/nvidia4000", "/tmp/dev/nvidia7", "socket:[1]"},
		12: {"/dev/nvidia0"},
		13: nil,
	})
	if got, err := p.opened(11); err != nil || !cmp.Equal(got, []int{0, 1}) {
		t.Errorf("opened: %v, %v", got, err)
	}
	if got := p.holders(0); !cmp.Equal(got, []int{11, 12}) {
		t.Errorf("holders: %v", got)
	}
	if got := p.holders(-1); got != nil {
		t.Errorf("holders of no device: %v", got)
	}
	if !p.holds(12, 0) || p.holds(12, 1) || p.holds(13, 0) || p.holds(14, 0) {
		t.Error("holds")
	}
	if p.name(12) != "p12" || p.name(99) != "" {
		t.Errorf("names %q, %q", p.name(12), p.name(99))
	}
	if !p.initialNamespace() || procFS("/nowhere").initialNamespace() {
		t.Error("initialNamespace")
	}
	if _, err := look(p, 99); err == nil {
		t.Error("look at no process: no error")
	}
	if _, err := p.read(filepath.Join(string(p), "12/comm"), 2); err == nil {
		t.Error("read beyond the limit: no error")
	}
}

func TestLookSelf(t *testing.T) {
	e, err := Look(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	v, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	if e.Env.Visible != v || e.Env.VisibleSet != set {
		t.Errorf("%+v", e)
	}
}

func TestParseEnviron(t *testing.T) {
	got := parseEnviron([]byte("A=1\x00XCUDA_VISIBLE_DEVICES=9\x00CUDA_VISIBLE_DEVICES=\x00CUDA_DEVICE_ORDER=PCI_BUS_ID\x00CUDA_VISIBLE_DEVICES=3\x00CUDA_DEVICE_ORDER=x\x00"))
	if want := (Env{Visible: "", VisibleSet: true, Order: "PCI_BUS_ID"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := parseEnviron(nil); got != (Env{}) {
		t.Errorf("%+v", got)
	}
}
