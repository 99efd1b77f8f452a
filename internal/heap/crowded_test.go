package heap

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
)

// A container that has, or claims to have, far more references than there are objects does
// not cost the tensors their holders.
func TestCrowdedContainer(t *testing.T) {
	python := installed(t)
	minor := slices.Max(slices.Collect(maps.Keys(python)))
	p := start(t, python[minor], []string{"PYTHONPATH=" + buildStandin(t, python[minor])}, "testdata/crowded.py", "6000000")
	where, err := FindRuntime(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ReadMemory(context.Background(), processMemory(p.pid), where, Options{Keys: AllKeys})
	if err != nil {
		t.Fatal(err)
	}
	if r.Refused != "" {
		t.Fatal(r.Refused)
	}
	found := 0
	for _, s := range r.Storages {
		if strings.HasPrefix(s.Holder, "kept[") {
			found++
		}
	}
	if found != 20 {
		t.Errorf("%d of 20 tensors have their holder; %v", found, r.Loss)
	}
}
