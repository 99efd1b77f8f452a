package physical

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// replay applies a log of calls, and calls nvml for each figure of NVML's in it.
func replay(t *testing.T, path string, l *Ledger, nvml func(label string, bytes int64)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	outer := map[string]uint16{}
	lines := bufio.NewScanner(file)
	for now := uint64(1); lines.Scan(); now += 1000 {
		var root, parent, object uint64
		var bytes int64
		function := "-"
		line := lines.Text()
		op, rest, _ := strings.Cut(line, " ")
		e := &event.Event{Time: now, Proc: proc, TID: 1}
		switch op {
		case "#":
			continue
		case "nvml":
			figure, label, _ := strings.Cut(rest, " ")
			if _, err := fmt.Sscan(figure, &bytes); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			nvml(label, bytes)
			continue
		case "client":
			e.Op = event.OpClient
			_, err = fmt.Sscanf(rest, "%x", &object)
			root, e.Addr = object, object // a descriptor each
		case "device":
			e.Op = event.OpObjectDevice
			_, err = fmt.Sscanf(rest, "%x %x", &root, &object)
			parent = root
		case "object":
			e.Op = event.OpObject
			_, err = fmt.Sscanf(rest, "%x %x %x", &root, &parent, &object)
		case "memory", "system":
			e.Op, e.Kind = event.OpObjectMemory, event.KindDriver
			if op == "system" {
				e.Kind = event.KindSystem
			}
			_, err = fmt.Sscanf(rest, "%x %x %x %d %s", &root, &parent, &object, &e.Size, &function)
		case "free":
			e.Op = event.OpObjectFree
			_, err = fmt.Sscanf(rest, "%x %x %s", &root, &object, &function)
		default:
			t.Fatalf("line %q", line)
		}
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		e.Handle, e.Part = root<<32|object, root<<32|parent
		if function == "-" {
			function = ""
		}
		if _, known := outer[function]; !known {
			outer[function] = uint16(len(outer))
		}
		e.Outer = outer[function]
		l.Apply(e, function)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// On an H200, what a process was seen to take was what NVML said, at each point where
// that was read.
func TestMeasured(t *testing.T) {
	for file, want := range map[string]int{"h200-driver.txt": 77, "h200-pytorch.txt": 11} {
		points := 0
		l := New(ledger.Options{})
		replay(t, filepath.Join("testdata", file), l, func(label string, bytes int64) {
			points++
			if got := total(l, proc); got != bytes {
				t.Errorf("%s: %s: %d bytes, NVML says %d", file, label, got, bytes)
			}
		})
		if points != want {
			t.Errorf("%s: %d points", file, points)
		}
	}
}

// What each thing takes on an H200, in bytes.
func TestMeasuredKinds(t *testing.T) {
	want := map[string]map[event.Kind]int64{
		"retain":    {event.KindContext: 543_162_368},
		"3 x 1 KiB": {event.KindContext: 543_162_368, event.KindBacking: 2 << 20},
		"module loaded": {event.KindContext: 543_162_368, event.KindBacking: 2 << 20, event.KindStream: 4 << 20,
			event.KindCode: 24 << 20, event.KindLocal: 576_716_800 - 434_110_464},
		"big launched": {event.KindContext: 543_162_368, event.KindBacking: 2 << 20, event.KindStream: 4 << 20,
			event.KindCode: 24 << 20, event.KindLocal: 4_729_077_760 - 434_110_464},
	}
	got := map[string]map[event.Kind]int64{}
	l := New(ledger.Options{})
	replay(t, filepath.Join("testdata", "h200-driver.txt"), l, func(label string, _ int64) {
		if want[label] == nil {
			return
		}
		got[label] = map[event.Kind]int64{}
		for s := range l.Rows.Sites {
			if s.InuseBytes != 0 && s.Kind != event.KindSystem {
				got[label][s.Kind] += s.InuseBytes
			}
		}
	})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
