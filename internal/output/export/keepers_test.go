package export

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/holdertest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// The page of a failure says which objects keep memory, where the heap was read.
func TestKeepers(t *testing.T) {
	page := func(o *snapshot.OutOfMemory) string {
		var b bytes.Buffer
		if err := OutOfMemory(&b, o); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	o := trains()
	without := page(o)
	if strings.Contains(without, "keeps it alive") {
		t.Errorf("a page without a reading:\n%s", without)
	}
	heap := snapshot.Heap{PID: 30, Process: "python3", Begin: o.Time.Add(time.Second), End: o.Time.Add(1412 * time.Millisecond), Reading: holdertest.Training()}
	other := heap
	other.PID, other.Reading = 31, &holder.Reading{Refused: "another process's"}
	o.Snapshot.Heaps = []snapshot.Heap{other, heap}
	o.Snapshot.Samples[2].Holder = "trainer.history[*].grad_fn"
	with := page(o)
	begin := strings.Index(with, "What keeps it alive")
	end := strings.Index(with, "Where")
	if begin < 0 || end < begin || !strings.HasPrefix(without, with[:begin]) || !strings.HasSuffix(without, with[end:]) {
		t.Fatalf("the page is another one beside what it says of holders:\n%s", with)
	}
	snapshottest.Golden(t, "keepers.txt", []byte(with[begin:end]))

	o.Snapshot.Heaps[1].Reading = &holder.Reading{Refused: "it is a free-threaded CPython"}
	o.Snapshot.Heaps[1].End = o.Time.Add(-time.Minute)
	if text := page(o); !strings.Contains(text, "1m0s before the failure") || !strings.Contains(text, "Not known: it is a free-threaded CPython.") {
		t.Errorf("a refused reading:\n%s", text)
	}
}
