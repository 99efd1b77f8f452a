package snapshot

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A rank is called so. Its worker is not, nor is the one process of a job, and what was asked is
// left as it was.
func TestByRank(t *testing.T) {
	rank := func(rank, size string) Who { return Who{Rank: rank, WorldSize: size} }
	of := func(name, third string) *Snapshot {
		return &Snapshot{
			Processes: []Process{
				{PID: 10, Name: "bash", Who: rank("1", "8")},
				{PID: 11, Name: name, Who: rank("1", "8"), Parent: 10, Peak: 1},
				{PID: 12, Name: third, Who: rank("1", "8"), Parent: 11},
				{PID: 13, Name: third, Who: rank("0", "1")},
			},
			Samples:    []Sample{{Labels: Labels{PID: 11, Process: name}}, {Labels: Labels{PID: 12, Process: third}}},
			Accounts:   []Account{{PID: 11, Process: name}},
			Allocators: []Allocator{{PID: 11, Process: name}},
			Steps:      []Steps{{PID: 11, Process: name}},
			Windowed:   []Windowed{{PID: 11, Process: name}},
		}
	}
	s, want := of("python3", "python3"), of("rank 1 of 8", "python3")
	want.Processes[0].Name = "rank 1 of 8"
	if d := cmp.Diff(want, s.ByRank()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(of("python3", "python3"), s); d != "" {
		t.Error(d)
	}
	if o := (&OutOfMemory{PID: 11, Process: "python3", Snapshot: s}).ByRank(); o.Process != "rank 1 of 8" || o.Snapshot.Samples[0].Process != o.Process {
		t.Errorf("%+v", o)
	}
	if s := (&Snapshot{Processes: []Process{{PID: 1, Name: "python3"}}}); s.ByRank() != s {
		t.Error("a snapshot without ranks was copied")
	}
}
