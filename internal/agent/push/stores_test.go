package push

import (
	"bytes"
	"compress/gzip"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/rpc"
)

// all returns the values of a field that has bytes.
func all(t *testing.T, msg []byte, number protowire.Number) (out [][]byte) {
	t.Helper()
	if err := rpc.Fields(msg, func(n protowire.Number, _ uint64, b []byte) {
		if n == number {
			out = append(out, b)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func parsed(t *testing.T, raw []byte) *profile.Profile {
	t.Helper()
	p, err := profile.ParseData(raw)
	if err == nil {
		err = p.CheckValid()
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func types(p *profile.Profile) (out []string) {
	for _, t := range p.SampleType {
		out = append(out, t.Type)
	}
	return out
}

func oneProcess(t *testing.T, name string) *process {
	t.Helper()
	w := newWorld()
	c, _ := collecting(w, Options{})
	a := w.start(7, name)
	gone := w.alloc(a, 500)
	w.pass(time.Minute)
	collected(c)
	w.free(a, gone)
	w.alloc(a, 1000)
	w.pass(time.Minute)
	return collected(c)[0]
}

// Each store gets the values in the form in which it does not add up what must not be:
// Parca takes all of a profile that lasts for deltas, and Pyroscope makes a series of each
// label of a sample.
func TestForms(t *testing.T) {
	x := oneProcess(t, "train")
	e := &pyroscope{}
	if err := e.add(x); err != nil {
		t.Fatal(err)
	}
	series := all(t, e.body(), pushSeries)
	samples := all(t, series[0], seriesSamples)
	p := parsed(t, all(t, samples[0], rawProfile)[0])
	if got := types(p); len(got) != 5 || p.DurationNanos != x.end.Sub(x.begin).Nanoseconds() || p.TimeNanos != x.end.UnixNano() {
		t.Errorf("Pyroscope: %v, from %d for %d", got, p.TimeNanos, p.DurationNanos)
	}
	for _, s := range p.Sample {
		for name := range s.Label {
			if !slices.Contains(fewLabels, name) {
				t.Errorf("Pyroscope: a sample has the label %s", name)
			}
		}
	}
	if id := string(all(t, samples[0], rawID)[0]); id != x.id.String() || len(id) != 36 || id[14] != '4' {
		t.Errorf("identity %s", id)
	}

	raw := &parca{}
	if err := raw.add(x); err != nil {
		t.Fatal(err)
	}
	series = all(t, raw.body(), rawSeries)
	samples = all(t, series[0], seriesSamples)
	if len(samples) != 2 {
		t.Fatalf("Parca: %d profiles", len(samples))
	}
	delta, value := parsed(t, all(t, samples[0], rawProfile)[0]), parsed(t, all(t, samples[1], rawProfile)[0])
	if got := types(delta); !slices.Equal(got, []string{"alloc_objects", "alloc_space"}) || delta.DurationNanos == 0 {
		t.Errorf("Parca: deltas %v for %d", got, delta.DurationNanos)
	}
	if got := types(value); !slices.Equal(got, []string{"peak_space", "inuse_objects", "inuse_space"}) || value.DurationNanos != 0 {
		t.Errorf("Parca: values %v for %d", got, value.DurationNanos)
	}
	for _, p := range []*profile.Profile{delta, value} {
		if p.TimeNanos != x.end.UnixNano() || p.Sample[0].Label["api"] == nil || len(p.Location) == 0 || len(p.Function) == 0 {
			t.Errorf("Parca: %v", p)
		}
	}
	if again, _ := x.pack(form{values: held}); &again[0] != &x.gzipped[form{values: held}][0] {
		t.Error("a form is made twice")
	}
}

// Names are what a traced program likes them to be. What is sent is valid, and text.
func TestHostileNames(t *testing.T) {
	x := oneProcess(t, "\x1b]0;evil\x07\xff<script>\u202e"+strings.Repeat("n", 10_000))
	for _, system := range Systems {
		s, _, err := systemOf(Target{system, "http://h"})
		if err != nil {
			t.Fatal(err)
		}
		e := s.encoder("1\n2")
		if err := e.add(x); err != nil {
			t.Fatal(err)
		}
		body := e.body()
		if system == "otlp" {
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
			request := pprofileotlp.NewExportRequest()
			if err := request.UnmarshalProto(body); err != nil {
				t.Fatal(err)
			}
			for _, text := range request.Profiles().Dictionary().StringTable().All() {
				if !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\x07") {
					t.Errorf("%q", text)
				}
			}
		}
		if bytes.Contains(body, []byte("\x1b]")) || bytes.Contains(body, []byte("\x07\xff")) || bytes.Contains(body, []byte("\u202e")) {
			t.Errorf("%s: the name is as it was", system)
		}
	}
}
