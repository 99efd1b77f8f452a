package replay

import (
	"os"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// boot and start are of every trace here.
var (
	boot  = time.Unix(1_700_000_000, 0).UTC()
	start = boot.Add(time.Second)
)

// at is a time of records, so long after the trace began.
func at(after time.Duration) uint64 { return uint64(time.Second + after) }

var proc = event.Process{PID: 7, Start: event.StartUnit}

func traceOf(more ...func(*record.Trace)) *record.Trace {
	t := &record.Trace{Version: "1", Target: "pid 7 (prog)", Boot: boot, Start: start, Incidents: 10, APIs: []string{"", "cuMemAlloc_v2"}}
	for _, f := range more {
		f(t)
	}
	return t
}

func moment(after time.Duration) *record.Moment {
	return &record.Moment{Time: at(after), Drained: true}
}

// alloc is an allocation of one byte.
func alloc(after time.Duration, addr uint64) *event.Event {
	return &event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: at(after), Proc: proc, TID: 7, API: 1, Stack: 1, Addr: addr, Size: 1}
}

func bytesOf(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
