package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// Recordings of test/gpu/programs/findings.py on a GPU: the first finding of each is its fault, and a healthy
// program has none. testdata/findings.txt has all of them.
func TestFindingsOfRealRuns(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(corpusFolder, "findings/*.gmt"))
	if err != nil || len(files) < 40 {
		t.Fatal(len(files), "recordings:", err)
	}
	rules := map[string]string{"cycle-graph": "cycle", "import-jax": "import", "checkpoint-eval": "checkpoint", "evaluation-graph": "no-backward", "buckets-twice": "buckets"}
	var all strings.Builder
	for _, file := range files {
		name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".gmt"), "_", "-")
		x, err := findingsNeed.answer(file)
		if err != nil {
			t.Fatal(err)
		}
		found := x.wrong(file).Findings
		for _, f := range found {
			fmt.Fprintf(&all, "%s: %s: %s %s\n", name, f.Rule, f.Says, f.Change)
		}
		rule := rules[name]
		if rule == "" {
			rule = name
		}
		switch healthy := strings.HasPrefix(name, "healthy"); {
		case healthy && len(found) > 0:
			t.Errorf("%s: %+v", name, found)
		case !healthy && (len(found) == 0 || found[0].Rule != rule):
			t.Errorf("%s: %+v, want %s first", name, found, rule)
		}
	}
	snapshottest.Golden(t, "findings.txt", []byte(all.String()))
}
