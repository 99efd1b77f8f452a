package oomdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A page first names the command, and then says what the recording shows. A page that somebody
// removed before that is not written again.
func TestExplain(t *testing.T) {
	d, err := Open(filepath.Join(t.TempDir(), "oom"), 0o700, false)
	if err != nil {
		t.Fatal(err)
	}
	recording := "../../../test/recordings/allocator/fragmented.gmt"
	told := make(chan string, 10)
	d.Explain(func() string { return recording }, func(text string) { told <- text })
	write := func(pid int, tensor int64) string {
		t.Helper()
		page, err := d.Write(&snapshot.OutOfMemory{Time: time.Now(), PID: pid, Tensor: tensor, Snapshot: &snapshot.Snapshot{}})
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	text := func(page string) string {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(b)), " ")
	}
	const command, answer = "gpumemtrace report ../../../test/recordings/allocator/fragmented.gmt --oom says", "With expandable_segments:True the request of 500 MiB that failed would have been served"
	page, removed := write(467, 500<<20), write(467, 500<<20)
	if got := text(page); !strings.Contains(got, command) && !strings.Contains(got, answer) {
		t.Errorf("at first: %s", got)
	}
	if err := os.Remove(removed); err != nil {
		t.Fatal(err)
	}
	other := write(467, 0)
	recording = ""
	unasked := write(467, 500<<20)
	d.Finish()
	if got := text(page); strings.Contains(got, command) || !strings.Contains(got, answer) {
		t.Errorf("at the end: %s", got)
	}
	if _, err := os.Stat(removed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the page that was removed: %v", err)
	}
	for _, p := range []string{other, unasked} {
		if got := text(p); strings.Contains(got, "Other settings") {
			t.Errorf("nothing to ask: %s", got)
		}
	}
	if got := <-told; !strings.Contains(got, page) || !strings.Contains(got, answer) {
		t.Errorf("it was told %q", got)
	}
}

// What asks never waits.
func TestExplainWithoutRoom(t *testing.T) {
	x := &explainer{questions: make(chan question, waiting)}
	for range waiting + 1 {
		x.add(question{})
	}
	if len(x.questions) != waiting {
		t.Errorf("%d questions wait, want %d", len(x.questions), waiting)
	}
}
