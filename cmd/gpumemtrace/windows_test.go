package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// windowedFile returns a recording with one window, in which a tensor is made of 40 MiB that there are.
func windowedFile(t *testing.T) string {
	id, w := event.Process{PID: 17, Start: event.StartUnit}, record.Window{Length: uint64(2 * time.Second), Every: uint64(time.Minute)}
	open := w
	open.Open = true
	begin := time.Unix(1_700_000_000, 0)
	place := record.NewPlace(1, 0, &snapshot.Location{Lines: []snapshot.Line{{Function: "forward", File: "/home/u/train.py", Line: 7}}}, nil)
	return recordtest.File(t, &record.Trace{Start: begin, Boot: begin, Target: "pid 17 (train)", APIs: []string{"", "cuMemAlloc_v2"}},
		&record.Tensors{Window: w}, &record.Process{Process: id, Target: true, Name: "train"}, &record.Stack{ID: 5, Process: id, Frames: []*record.Place{place}},
		&event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Time: 1e9, Proc: id, Addr: 1 << 30, Size: 64 << 20, Stack: 5},
		&record.Tensors{Time: 2e9, Window: open},
		&event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Time: 3e9, Proc: id, Addr: 1 << 30, Size: 12 << 20, Stack: 5, Handle: 52 << 20, Part: 64 << 20},
		&record.Tensors{Time: 4e9, Window: w}, &record.Moment{Time: 5e9, Drained: true})
}

// Each page of a recording with windows says so, and what needs every tensor refuses it.
func TestWindowsOfRecording(t *testing.T) {
	path := windowedFile(t)
	whole, err := filepath.Abs("../../test/recordings/profiler.gmt")
	if err != nil {
		t.Fatal(err)
	}
	const which = "of 1 window of 2s, one each 1m"
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"report " + path, exitDone, []string{which, "[tensors from before the window]", "train.py:7 forward", "At the peak", "64.0 MiB"}},
		{"report --windows " + path, exitDone, []string{which, "40.0 MiB", "12.0 MiB", "forward train.py:7"}},
		{"report --windows --csv " + path, exitDone, []string{"train,17,cuda:0,1,2.000000000,0,41943040", "12582912,1,0,,,1,12582912"}},
		{"report --by line " + path, exitDone, []string{"Here segments are whole", "traced in windows only"}},
		{"report --steps " + path, exitDone, []string{"No step was seen in 1 window of 2s"}},
		{"report --leaks " + path, exitDone, []string{"Too short to tell what leaks"}},
		{"convert -o - --format json " + path, exitDone, []string{`"tensor_windows":{"length_ns":2000000000`, `"before_bytes":41943040`, `"inuse_bytes":67108864`}},
		{"report --windows " + whole, exitUsage, []string{"has no windows of tensors"}},
		{"report --windows --steps " + path, exitUsage, []string{"give only one of"}},
		{"whatif " + path, exitFailed, []string{"lacks the tensors between windows"}},
		{"fit 8=" + path + " 16=" + path + " --to 32", exitFailed, []string{"lacks the tensors between windows"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			v := command(t, strings.Fields(c.args)...).start().ends(c.code)
			if c.code != exitDone {
				v.says(c.says...)
				return
			}
			for _, text := range c.says {
				if !strings.Contains(v.stdout.String(), text) {
					t.Errorf("it lacks %q:\n%s", text, v.stdout.String())
				}
			}
		})
	}
}
