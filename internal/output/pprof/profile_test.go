package pprof

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

var snapshots = map[string]func() *snapshot.Snapshot{
	"training":      snapshottest.Training,
	"two_processes": snapshottest.TwoProcesses,
	"windows":       snapshottest.Windowed,
	"hostile":       snapshottest.Hostile,
	"empty":         func() *snapshot.Snapshot { return &snapshot.Snapshot{} },
}

func write(t testing.TB, s *snapshot.Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func build(t testing.TB, s *snapshot.Snapshot) *profile.Profile {
	t.Helper()
	p, err := Profile(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestGolden(t *testing.T) {
	for name, s := range snapshots {
		t.Run(name, func(t *testing.T) {
			text := build(t, s()).String()
			snapshottest.Golden(t, name+".txt", []byte(text))

			back, err := profile.Parse(bytes.NewReader(write(t, s())))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(text, back.String()); d != "" {
				t.Errorf("written and read again, it differs:\n%s", d)
			}
		})
	}
}

// TestDeterministic shuffles what has no order of its own.
func TestDeterministic(t *testing.T) {
	want := write(t, snapshottest.Training())
	for seed := range uint64(20) {
		s := snapshottest.Training()
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(s.Samples), func(i, j int) {
			s.Samples[i], s.Samples[j] = s.Samples[j], s.Samples[i]
		})
		if !bytes.Equal(write(t, s), want) {
			t.Fatalf("order of samples (seed %d) changes the bytes", seed)
		}
	}
}

// TestTotals: of memory on GPUs, nothing but failed calls is left out. Of other memory, a profile has
// what was held.
func TestTotals(t *testing.T) {
	for name, s := range snapshots {
		host := len(sampleTypes)
		want, got := make([]int64, host+1), make([]int64, host+1)
		snap := s()
		for i := range snap.Samples {
			if x := &snap.Samples[i]; !snapshot.OnGPU(x.Kind) {
				want[host] += x.InuseBytes
				continue
			}
			for j, st := range sampleTypes {
				want[j] += *st.Of(&snap.Samples[i].Values)
			}
		}
		for _, sample := range build(t, snap).Sample {
			for j, v := range sample.Value[:len(got)] {
				got[j] += v
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: totals %v, want %v", name, got, want)
		}
	}
}

func TestEqualSamplesAreMerged(t *testing.T) {
	s := snapshottest.Training()
	want := build(t, s).String()
	// The same stack by content, not by pointer.
	twin := s.Samples[0]
	twin.Stack = nil
	for _, l := range s.Samples[0].Stack {
		c := *l
		twin.Stack = append(twin.Stack, &c)
	}
	for _, st := range sampleTypes {
		*st.Of(&twin.Values) /= 2
		*st.Of(&s.Samples[0].Values) -= *st.Of(&twin.Values)
	}
	twin.FailedObjects, twin.FailedBytes = 0, 0
	s.Samples = append(s.Samples, twin)
	if d := cmp.Diff(want, build(t, s).String()); d != "" {
		t.Errorf("a sample split in two changes the profile:\n%s", d)
	}
}

func TestLabels(t *testing.T) {
	for _, c := range []struct {
		snap *snapshot.Snapshot
		want map[string][]string
	}{
		{snapshottest.Training(), map[string][]string{
			"kind": {"context"}, "api": {"cuDevicePrimaryCtxRetain"}, "gpu": {"0"}, "owner": {"pytorch"}, "process": {"python3"}}},
		{snapshottest.TwoProcesses(), map[string][]string{
			"kind": {"async"}, "api": {"cuMemAllocAsync"}, "runtime": {"cudaMallocAsync"}, "gpu": {"0"}, "owner": {"cupy"}, "process": {"serve"}, "pid": {"11"}}},
	} {
		if d := cmp.Diff(c.want, build(t, c.snap).Sample[0].Label); d != "" {
			t.Error(d)
		}
	}
}

// TestWindows: tensors that were seen in windows have values of their own, and add nothing to others. A
// profile without any has no such values, so that it can be compared with older ones.
func TestWindows(t *testing.T) {
	p, without := build(t, snapshottest.Windowed()), build(t, snapshottest.Training())
	n := len(sampleTypes) + 1
	if len(without.SampleType) != n {
		t.Errorf("a trace without windows has %d values", len(without.SampleType))
	}
	sums := map[string][2]int64{}
	for _, x := range p.Sample {
		of := ""
		if label := x.Label["window"]; label != nil {
			of = x.Label["process"][0] + " " + label[0] + " " + x.Location[len(x.Location)-1].Line[0].Function.Name
		}
		if of != "" && slices.ContainsFunc(x.Value[:n], func(v int64) bool { return v != 0 }) {
			t.Errorf("%s: %v", of, x.Value)
		}
		sums[of] = [2]int64{sums[of][0] + x.Value[n], sums[of][1] + x.Value[n+1]}
	}
	want := map[string][2]int64{"": {}, "python3 per step forward": {26 << 20, 27638114}, "python3 per step loss": {7 << 20, 7441030},
		"python3 per step [tensors from before the window]": {100 << 20, 0}, `x\x1b[2J per second loss`: {7 << 20, 7 << 30 / 6}}
	if d := cmp.Diff(want, sums); d != "" {
		t.Error(d)
	}
	out, errs := pprof(t, "-top", "-sample_index=window_peak_space", save(t, snapshottest.Windowed()))
	if errs != "" {
		t.Errorf("pprof complains: %s", errs)
	}
	snapshottest.Golden(t, "pprof/top_window_peak_space.txt", []byte(out))
}

// TestProgramComesFirst: pprof takes the first mapping for the program, also
// when none of the frames lies in it.
func TestProgramComesFirst(t *testing.T) {
	program, lib, unused := &snapshot.Mapping{Path: "/bin/program"}, &snapshot.Mapping{Path: "/lib.so"}, &snapshot.Mapping{Path: "/unused.so"}
	p := build(t, &snapshot.Snapshot{
		Mappings: []*snapshot.Mapping{program, unused, lib},
		Samples: []snapshot.Sample{{
			Stack:  []*snapshot.Location{{Address: 1, Mapping: lib, Lines: []snapshot.Line{{Function: "f"}}}},
			Values: snapshot.Values{InuseBytes: 1},
		}},
	})
	var got []string
	for _, m := range p.Mapping {
		got = append(got, m.File)
	}
	if want := []string{"/bin/program", "/lib.so"}; !slices.Equal(got, want) {
		t.Errorf("mappings %q, want %q", got, want)
	}
}

func TestHostileStrings(t *testing.T) {
	p, err := profile.ParseData(write(t, snapshottest.Hostile()))
	if err != nil {
		t.Fatal(err)
	}
	check := func(s string) {
		if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
			t.Errorf("%q reached the profile", s)
		}
	}
	for _, f := range p.Function {
		check(f.Name)
		check(f.SystemName)
		check(f.Filename)
	}
	for _, m := range p.Mapping {
		check(m.File)
		check(m.BuildID)
	}
	for _, c := range p.Comments {
		check(c)
	}
	for _, s := range p.Sample {
		for _, values := range s.Label {
			for _, v := range values {
				check(v)
			}
		}
	}
}

func TestMergeAndDiff(t *testing.T) {
	one := build(t, snapshottest.Training())
	two, err := profile.Merge([]*profile.Profile{one, one.Copy()})
	if err != nil {
		t.Fatal(err)
	}
	if len(two.Sample) != len(one.Sample) {
		t.Errorf("merged with itself: %d samples, want %d", len(two.Sample), len(one.Sample))
	}
	for i := range two.Sample {
		for j, v := range two.Sample[i].Value {
			if v != 2*one.Sample[i].Value[j] {
				t.Errorf("sample %d: %s is %d, want twice %d", i, sampleTypes[j].Name, v, one.Sample[i].Value[j])
			}
		}
	}
	base := one.Copy()
	base.Scale(-1)
	zero, err := profile.Merge([]*profile.Profile{one, base})
	if err != nil {
		t.Fatal(err)
	}
	if len(zero.Sample) != 0 {
		t.Errorf("a profile minus itself has %d samples", len(zero.Sample))
	}
	if _, err := profile.Merge([]*profile.Profile{one, build(t, snapshottest.TwoProcesses()), build(t, &snapshot.Snapshot{})}); err != nil {
		t.Errorf("merge of different traces: %v", err)
	}
}

func BenchmarkWrite10kStacks(b *testing.B) {
	s := large(10_000, 40)
	for b.Loop() {
		write(b, s)
	}
}

func large(stacks, depth int) *snapshot.Snapshot {
	rng := rand.New(rand.NewPCG(1, 2))
	m := &snapshot.Mapping{Start: 0x1000, Limit: 0x10000000, Path: "/lib/lib.so"}
	locations := make([]*snapshot.Location, 5000)
	for i := range locations {
		locations[i] = &snapshot.Location{Address: uint64(0x1000 + i*16), Mapping: m,
			Lines: []snapshot.Line{{Function: "function_" + strings.Repeat("x", i%40), File: "file.cpp", Line: i}}}
	}
	s := &snapshot.Snapshot{Mappings: []*snapshot.Mapping{m}}
	for range stacks {
		sample := snapshot.Sample{Labels: snapshot.Labels{Kind: "device", PID: 1}, Values: snapshot.Values{InuseBytes: rng.Int64N(1000), AllocBytes: 1000}}
		for range depth {
			sample.Stack = append(sample.Stack, locations[rng.IntN(len(locations))])
		}
		s.Samples = append(s.Samples, sample)
	}
	return s
}

// TestPeaks: a profile of processes that have ended shows what they held at their peaks.
func TestPeaks(t *testing.T) {
	s := snapshottest.Training()
	s.Meta.Peaks, s.Meta.Moment = true, "at the peak, 12s after the trace began"
	p := build(t, s)
	if p.DefaultSampleType != "peak_space" {
		t.Errorf("it shows %s", p.DefaultSampleType)
	}
	back, err := Read(bytes.NewReader(write(t, s)))
	if err != nil || !back.Meta.Peaks || back.Meta.Moment != s.Meta.Moment {
		t.Errorf("%v %+v", err, back)
	}
	for _, x := range p.Sample {
		if host := x.Value[len(sampleTypes)]; x.Label["kind"][0] == "host" && host != 0 {
			t.Errorf("%d bytes of host memory, whose peak is 0", host)
		}
	}
}
