package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

var noted = time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)

// totals are those of a moment, so long after noted: of each owner on GPU 0.
func totals(after time.Duration, owners ...string) *state.Totals {
	t := &state.Totals{Meta: snapshot.Meta{Start: noted, Duration: after}}
	for i, owner := range owners {
		t.Groups = append(t.Groups, state.GroupFigures{Group: state.Group{GPU: "0", Kind: event.KindDevice, Owner: owner}, LiveBytes: int64(100 * (i + 1))})
	}
	return t
}

// The last hour is kept to the second, and of each minute before the highest total.
func TestHistory(t *testing.T) {
	h := noting()
	const hours = 3
	for i := range hours * 3600 {
		x := totals(time.Duration(i)*time.Second, "pytorch", "nccl")
		x.Groups[0].LiveBytes = int64(1 + i%60)
		x.Groups = append(x.Groups, state.GroupFigures{Group: state.Group{GPU: "0", Kind: event.KindImported, Owner: "elsewhere"}, LiveBytes: 7})
		h.take(x)
	}
	h.take(totals(hours*3600*time.Second-time.Second, "pytorch")) // the moment before, once more
	d := h.since(-1)
	if !reflect.DeepEqual(d.Series, []series{{"0", "pytorch"}, {"0", "nccl"}}) {
		t.Fatal(d.Series)
	}
	if len(h.fine) != maxFine || len(h.coarse) != (hours-1)*60 {
		t.Errorf("%d notes to the second, %d to the minute", len(h.fine), len(h.coarse))
	}
	last := int64(0)
	for i, p := range d.Points {
		if p.At <= last {
			t.Fatalf("%d after %d", p.At, last)
		}
		last = p.At
		if i < len(h.coarse) && p.Bytes[0] != 60 || p.Bytes[1] != 200 {
			t.Fatalf("note %d is %v", i, p.Bytes)
		}
	}
	if want := noted.Add(hours*3600*time.Second - time.Second).UnixMilli(); last != want || d.Now != want {
		t.Errorf("the last is of %d, %d, want %d", last, d.Now, want)
	}
	if got := h.since(last - 2000); len(got.Points) != 2 {
		t.Errorf("%d of the last two seconds", len(got.Points))
	}
}

// noting is a history of no server.
func noting() *history {
	set := loss.New(causes)
	return &history{lost: set, presences: presences{lost: set}}
}

// Days later it is no larger, and what is too much to be told apart is others'.
func TestHistoryIsBounded(t *testing.T) {
	h := noting()
	for i := range 10 * 24 * 60 {
		h.take(totals(time.Duration(i)*time.Minute, "o"+fmt.Sprint(i)))
	}
	if len(h.fine) > maxFine || len(h.coarse) != maxCoarse || len(h.series) > maxSeries+1 || h.lost.Counters()[lossSeries].Value == 0 {
		t.Errorf("%d, %d, %d series, %v", len(h.fine), len(h.coarse), len(h.series), h.lost.Counters())
	}
	if last := h.fine[len(h.fine)-1]; last.total() != 100 || h.series[len(last.bytes)-1].Owner != othersOf {
		t.Errorf("%v of %v", last, h.series[len(last.bytes)-1])
	}
}

// The history of a trace is what its snapshot shows, on each GPU.
func TestHistoryAPI(t *testing.T) {
	for _, name := range []string{"fsdp", "accelerate", "jax", "ipc"} {
		h := recorded(t, name)
		s := serve(t, Options{Source: h})
		want := map[string]int64{}
		snap := h.View(state.Want{Driver: true}).Snapshot()
		for i := range snap.Samples {
			if x := &snap.Samples[i]; snapshot.OnGPU(x.Kind) && x.InuseBytes != 0 {
				want[x.GPU] += x.InuseBytes
			}
		}
		var d historyDocument
		for end := time.Now().Add(5 * time.Minute); len(d.Points) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if err := json.Unmarshal([]byte(s.get(http.StatusOK, "/api/v1/history")), &d); err != nil {
				t.Fatal(err)
			}
		}
		got, held, on := map[string]int64{}, map[string]int64{}, map[int64]string{}
		for i, bytes := range d.Points[0].Bytes {
			got[d.Series[i].GPU] += bytes
		}
		for _, x := range d.Processes {
			on[x.ID] = x.GPU
		}
		for _, x := range *d.Points[0].Held {
			held[on[x[0]]] += x[1]
		}
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(held, want) || len(got) == 0 {
			t.Errorf("%s: %v by owner, %v by process, want %v", name, got, held, want)
		}
		s.get(http.StatusBadRequest, "/api/v1/history?after=1.5")
	}
}
