package footprint

import (
	"os"
	"strings"
	"testing"
)

func TestGrown(t *testing.T) {
	first, err := Of(os.Getpid())
	if err != nil || first.Resident == 0 || first.Descriptors < 3 {
		t.Fatalf("%+v, %v", first, err)
	}
	var open []*os.File
	for range first.Descriptors + 10 {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, f)
	}
	now, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got := now.Most(first).Grown(first, 1<<20); len(got) != 1 || !strings.HasPrefix(got[0], "descriptors: ") {
		t.Errorf("%q of %d more descriptors", got, len(open))
	}
	for _, f := range open {
		f.Close()
	}
	if _, err := Of(-1); err == nil {
		t.Error("nobody has a footprint")
	}
}
