package gpu

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
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

// fakeHost has one process for each pid, with the given files open.
func fakeHost(initial bool, open map[int][]string) host {
	return host{
		initial: initial,
		all:     func() []int { return slices.Sorted(maps.Keys(open)) },
		name: func(pid int) string {
			if _, ok := open[pid]; ok {
				return fmt.Sprint("p", pid)
			}
			return ""
		},
		opened: func(pid int) ([]int, error) {
			files, ok := open[pid]
			return minors(func(yield func(string, error) bool) {
				if !ok {
					yield("", fmt.Errorf("process %d: %w", pid, os.ErrNotExist))
				}
				for _, path := range files {
					if path == "closed to us" {
						yield("", os.ErrPermission)
						return
					}
					if !yield(path, nil) {
						return
					}
				}
			})
		},
	}
}

func TestHost(t *testing.T) {
	open := map[int][]string{
		11: {"/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia1 (deleted)",
			"/dev/nvidia+1", "/dev/nvidia99999999999999999999", "/dev/nvidia4000", "/tmp/dev/nvidia7", "socket:[1]"},
		12:          {"/dev/nvidia0"},
		13:          nil,
		os.Getpid(): {"/dev/nvidia0"},
	}
	h := fakeHost(true, open)
	if got, err := h.opened(11); err != nil || !cmp.Equal(got, []int{0, 1}) {
		t.Errorf("opened: %v, %v", got, err)
	}
	if got := h.holders(0); !cmp.Equal(got, []int{11, 12}) {
		t.Errorf("holders: %v", got)
	}
	if got := h.holders(-1); got != nil {
		t.Errorf("holders of no device: %v", got)
	}
	if !h.holds(12, 0) || h.holds(12, 1) || h.holds(13, 0) || h.holds(14, 0) || h.holds(12, -1) {
		t.Error("holds")
	}
	h.all = func() []int { return []int{11, 12, 14} } // one has ended meanwhile
	if got := h.holders(0); !cmp.Equal(got, []int{11, 12}) {
		t.Errorf("holders beside a process that ended: %v", got)
	}
	open[14] = []string{"closed to us"}
	if got := h.holders(0); got != nil {
		t.Errorf("holders where one process cannot be read: %v", got)
	}
}

func TestNodes(t *testing.T) {
	number := func(major, minor uint32) uint64 { return unix.Mkdev(major, minor) }
	got := nodes(map[string]uint64{
		"nvidia1": number(nvidiaMajor, 1), "nvidia0": number(nvidiaMajor, 0), "nvidiactl": number(nvidiaMajor, 255),
		"nvidia2": number(1, 2), "nvidia3": number(nvidiaMajor, 4), "nvidia4000": number(nvidiaMajor, 4000), "null": number(1, 3),
	})
	if !cmp.Equal(got, []int{0, 1}) {
		t.Errorf("%v", got)
	}
}

// What is asked of the machine itself.
func TestHere(t *testing.T) {
	h, self := here(), os.Getpid()
	if h.name(self) == "" || !slices.Contains(h.all(), self) {
		t.Errorf("this process is %q, all are %v", h.name(self), h.all())
	}
	if _, err := h.opened(self); err != nil {
		t.Error(err)
	}
	if _, err := Look(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("look at no process: %v", err)
	}
}

func TestLookEnvironment(t *testing.T) {
	for _, tt := range []struct {
		set  []string
		want Env
	}{
		{nil, Env{}},
		{[]string{"CUDA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "XCUDA_VISIBLE_DEVICES=9"}, Env{VisibleSet: true, Order: "PCI_BUS_ID"}},
		{[]string{"CUDA_VISIBLE_DEVICES=1,0"}, Env{Visible: "1,0", VisibleSet: true}},
	} {
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.Env = append(tt.set, "A=1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The kernel lends it its environment a moment after its image.
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
			if set, err := proc.Environ(cmd.Process.Pid, "A"); err != nil || len(set) > 0 {
				break
			}
		}
		e, err := Look(cmd.Process.Pid)
		cmd.Process.Kill()
		cmd.Wait()
		if err != nil || e.Env != tt.want {
			t.Errorf("%q: %+v, %v", tt.set, e, err)
		}
	}
}
