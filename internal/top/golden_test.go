package top

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// The screens of recordings of real programs, at a narrow terminal and at a wide one.
func TestScreens(t *testing.T) {
	for _, c := range []struct {
		name, recording string
		at              time.Duration
		keys            string
	}{
		{"all", "torch_native", 10900 * time.Millisecond, ""},
		{"process", "torch_native", 10900 * time.Millisecond, "enter"},
		{"stack", "torch_native", 10900 * time.Millisecond, "enter down enter"},
		{"native", "torch_native", 10900 * time.Millisecond, "enter down enter f"},
		{"two", "nccl", 8 * time.Second, ""},
		{"gpu", "nccl", 8 * time.Second, "shift+tab enter"},
		{"owner", "nccl", 8 * time.Second, "tab enter"},
		{"filter", "nccl", 8 * time.Second, "/ P 2 p enter"},
		{"tensors", "profiler", 14260 * time.Millisecond, "enter s"},
		{"out_of_memory", "out_of_memory", 7 * time.Second, ""},
		{"help", "torch_native", 0, "?"},
		{"notes", "torch_native", 10900 * time.Millisecond, "n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := recorded(t, c.recording, c.at)
			d.press(c.keys)
			for _, size := range [][2]int{{80, 24}, {200, 50}} {
				d.resize(size[0], size[1])
				snapshottest.Golden(t, fmt.Sprintf("%s.%d.txt", c.name, size[0]), []byte(d.shows()))
			}
		})
	}
}

// The page of text and the document of a moment.
func TestOnce(t *testing.T) {
	for recording, at := range map[string]time.Duration{"torch_native": 10900 * time.Millisecond, "nccl": 8 * time.Second} {
		r, err := live.OpenRecording(recordings + recording + ".gmt")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p, err := live.Once(r, at, time.Second, nil)
		if err != nil {
			t.Fatal(err)
		}
		var text, document bytes.Buffer
		if err := Text(&text, p, 5, 100, false); err != nil {
			t.Fatal(err)
		}
		if err := p.Document(2).Write(&document); err != nil {
			t.Fatal(err)
		}
		snapshottest.Golden(t, recording+".txt", text.Bytes())
		snapshottest.Golden(t, recording+".json", document.Bytes())
	}
}

// The target of a recording is known at a moment before the trace named it.
func TestTargetOfEarlyMoment(t *testing.T) {
	r, err := live.OpenRecording(recordings + "fsdp.gmt")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const want = "pid 1019 (pt_elastic) and 2 child processes"
	for _, at := range []time.Duration{0, time.Second, 5 * time.Second, time.Millisecond} {
		p, err := live.Once(r, at, time.Second, nil)
		if err != nil {
			t.Fatal(err)
		}
		var text, document bytes.Buffer
		if err := errors.Join(Text(&text, p, 5, 100, false), p.Document(2).Write(&document)); err != nil {
			t.Fatal(err)
		}
		if head, _, _ := strings.Cut(text.String(), "\n"); !strings.HasPrefix(head, "GPU memory of "+want+", ") {
			t.Errorf("at %v: %q", at, head)
		}
		if !strings.Contains(document.String(), `"target":"`+want+`"`) {
			t.Errorf("at %v: %.300s", at, document.String())
		}
	}
}

// Processes of several users, in pods and jobs: the user is there at any width, the command
// line where there is room for it.
func TestTenants(t *testing.T) {
	d := drive(t, &made{looks: []*live.Snapshot{{Snapshot: snapshottest.Tenants()}}}, Options{Interval: time.Second})
	for _, width := range []int{80, 120, 240} {
		d.resize(width, 24)
		snapshottest.Golden(t, fmt.Sprintf("tenants.%d.txt", width), []byte(d.shows()))
	}
	s := snapshottest.Tenants()
	s.Processes[1].Rank, s.Processes[1].WorldSize = "3", "4"
	ranks := drive(t, &made{looks: []*live.Snapshot{{Snapshot: s}}}, Options{Interval: time.Second})
	ranks.has("rank 3 of 4")
	ranks.press("enter")
	ranks.has("process rank 3 of 4 (11)")
	d.press("/ 4 7 1 1 enter")
	d.has("job 4711")
	d.hasNot("serve-0")
}
