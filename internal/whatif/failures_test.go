package whatif

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// What is said of a failure is about that request of that process, on that GPU.
func TestExplain(t *testing.T) {
	p := Predict(lacking(), Options{})
	p.PID, p.GPU = 7, "0"
	partial := *p
	partial.Reason = "a part is missing"
	without := *p
	without.Lacked = 0
	served := "With expandable_segments:True the request of 30.0 MiB that failed would have been served"
	first := snapshot.OutOfMemory{PID: 7, GPU: "0", Tensor: 30 << 20, Unpredicted: "ask later"}
	change := func(f func(*snapshot.OutOfMemory)) snapshot.OutOfMemory {
		o := first
		f(&o)
		return o
	}
	for name, test := range map[string]struct {
		of                     snapshot.OutOfMemory
		by                     *Prediction
		predicted, unpredicted string
		told                   bool
	}{
		"the first":       {first, p, served, "", true},
		"a later one":     {change(func(o *snapshot.OutOfMemory) { o.Tensor++ }), p, "", "only the first request", true},
		"another process": {change(func(o *snapshot.OutOfMemory) { o.PID = 8 }), p, "", "ask later", false},
		"another GPU":     {change(func(o *snapshot.OutOfMemory) { o.GPU = "1" }), p, "", "ask later", false},
		"recovered":       {change(func(o *snapshot.OutOfMemory) { o.Recovered = true }), p, "", "ask later", false},
		"no tensor":       {change(func(o *snapshot.OutOfMemory) { o.Tensor = 0 }), p, "", "ask later", false},
		"not whole":       {first, &partial, "", "no prediction: a part is missing.", true},
		"not there yet":   {first, &without, "", "ask later", false},
	} {
		o := test.of
		told := Explain(&o, []*Prediction{test.by})
		if told != test.told || !strings.HasPrefix(o.Predicted, test.predicted) || (o.Predicted == "") != (test.predicted == "") || !strings.HasPrefix(o.Unpredicted, test.unpredicted) || (o.Unpredicted == "") != (test.unpredicted == "") {
			t.Errorf("%s: %t, %q, %q", name, told, o.Predicted, o.Unpredicted)
		}
	}
}

// While a trace goes on, a run is repeated only if that is bounded.
func TestPredictProcess(t *testing.T) {
	const file = "../../test/recordings/allocator/fragmented.gmt"
	if all, err := PredictProcess(file, 467); err != nil || len(all) != 1 || all[0].Lacked != 500<<20 {
		t.Errorf("%d predictions, %v", len(all), err)
	}
	if all, err := PredictProcess(file, 468); err != nil || len(all) != 0 {
		t.Errorf("%d predictions of another process, %v", len(all), err)
	}
	if _, err := predictFile(file, 467, 3); !errors.Is(err, ErrTooLong) {
		t.Errorf("more requests than may be: %v", err)
	}
	large := filepath.Join(t.TempDir(), "large.gmt")
	f, err := os.Create(large)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(mostBytes + 1); err != nil {
		t.Fatal(err)
	}
	if _, err := PredictProcess(large, 467); !errors.Is(err, ErrTooLong) {
		t.Errorf("a large recording: %v", err)
	}
}
