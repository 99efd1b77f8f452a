package pprof

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

func TestReadRefuses(t *testing.T) {
	var cpu, torn, pid bytes.Buffer
	other := &profile.Profile{SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}}, PeriodType: &profile.ValueType{}}
	if err := other.Write(&cpu); err != nil {
		t.Fatal(err)
	}
	if err := Write(&torn, snapshottest.Training()); err != nil {
		t.Fatal(err)
	}
	p := build(t, snapshottest.TwoProcesses())
	p.Sample[1].Label["pid"] = []string{"seven"}
	if err := p.Write(&pid); err != nil {
		t.Fatal(err)
	}
	torn.Truncate(torn.Len() / 2)
	for name, data := range map[string]io.Reader{
		"another profile": &cpu,
		"no pid":          &pid,
		"half a profile":  &torn,
		"text":            strings.NewReader("hello"),
		"nothing":         strings.NewReader(""),
	} {
		if _, err := Read(data); err == nil || !strings.HasPrefix(err.Error(), "not a profile that gpumemtrace wrote"+map[string]string{"text": " but text; give", "nothing": " but empty; give", "another profile": ": another program made it, it has no "}[name]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReadBack: a profile that is read back has the samples that were written. It lacks failed calls,
// and the pid where there is one process. A sample of memory that is on no GPU has only the bytes held.
func TestReadBack(t *testing.T) {
	for name, build := range snapshots {
		s := build()
		back, err := Read(bytes.NewReader(write(t, s)))
		if err != nil {
			t.Fatal(err)
		}
		if back.Meta.Target != render.Clean(s.Meta.Target) || back.Meta.Duration != s.Meta.Duration || !back.Meta.Start.Equal(s.Meta.Start) {
			t.Errorf("%s: %+v, want %+v", name, back.Meta, s.Meta)
		}
		if d := cmp.Diff(comments(s), back.Notes); d != "" {
			t.Errorf("%s: notes %s", name, d)
		}
		if d := cmp.Diff(told(s), told(back)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// told is what a profile tells of each stack.
func told(s *snapshot.Snapshot) map[string]snapshot.Values {
	out := map[string]snapshot.Values{}
	for _, sample := range s.Samples {
		sample.FailedObjects, sample.FailedBytes = 0, 0
		if !snapshot.OnGPU(sample.Kind) {
			sample.Values = snapshot.Values{PeakBytes: sample.InuseBytes, InuseBytes: sample.InuseBytes}
		}
		if sample.Values == (snapshot.Values{}) {
			continue
		}
		var key strings.Builder
		for i := range snapshot.AllLabels {
			if l := &snapshot.AllLabels[i]; !l.PerRun || s.Several() {
				key.WriteString(l.Name + "=" + render.Clean(l.Get(&sample.Labels)) + " ")
			}
		}
		for _, l := range sample.Frames() {
			fmt.Fprintf(&key, "\n%x", l.Address)
			if l.Mapping != nil {
				key.WriteString(" " + render.Clean(l.Mapping.Path))
			}
			for _, line := range l.Lines {
				fmt.Fprintf(&key, " %s %s %s:%d", render.Clean(line.Function), render.Clean(line.System), render.Clean(line.File), line.Line)
			}
		}
		sum := out[key.String()]
		sum.Add(&sample.Values)
		out[key.String()] = sum
	}
	return out
}

// TestReadWithoutNames: another program may have taken the names away.
func TestReadWithoutNames(t *testing.T) {
	p := build(t, snapshottest.Training())
	for _, l := range p.Location {
		l.Line = nil
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	s, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	called := func(x snapshot.Sample) bool {
		return slices.ContainsFunc(x.Stack, func(l *snapshot.Location) bool { return l.Lines[0].Function == "0x7f1000012345" })
	}
	if !slices.ContainsFunc(s.Samples, called) {
		t.Errorf("no frame is called by its address: %+v", s.Samples)
	}
}
