package export

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Samples that a table of stacks shows alike are one row of it.
func TestRowsThatLookAlike(t *testing.T) {
	at := func(name string) *snapshot.Location {
		return &snapshot.Location{Lines: []snapshot.Line{{Function: name}}}
	}
	leaf, one, other := at("leaf"), at("one"), at("other")
	sample := func(bytes int64, category, path string, stack ...*snapshot.Location) snapshot.Sample {
		return snapshot.Sample{Stack: stack, Labels: snapshot.Labels{Category: category, ModulePath: path}, Values: snapshot.Values{InuseBytes: bytes}}
	}
	s := &snapshot.Snapshot{Samples: []snapshot.Sample{
		sample(1, "activation", "model.layers[0]", leaf, one),
		sample(2, "activation", "model.layers[0]", leaf, other),
		sample(4, "activation", "model.layers[1]", leaf, one),
		sample(8, "temporary", "model.layers[1]", leaf, one),
		sample(16, "activation", "model.layers[2]", leaf, one),
	}}
	var got []int64
	for _, row := range alike(s, stackBy(s.Several())) {
		got = append(got, row.InuseBytes)
	}
	if len(got) != 3 || got[0] != 21 || got[1] != 2 || got[2] != 8 {
		t.Errorf("rows of %v bytes", got)
	}
	if s.Samples[0].InuseBytes != 1 {
		t.Error("the snapshot was changed")
	}
}
