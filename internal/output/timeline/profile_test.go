package timeline

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
)

// profileOf returns the page of a recording's end by way of a profile.
func profileOf(t *testing.T, path string, mostRows int) ([]byte, *page, *snapshot.Snapshot, []loss.Counter) {
	t.Helper()
	_, _, s := written(t, path, whole)
	var packed, out bytes.Buffer
	if err := pprof.Write(&packed, s.View(state.Want{Driver: true}).Snapshot()); err != nil {
		t.Fatal(err)
	}
	snap, err := pprof.Read(&packed)
	if err != nil {
		t.Fatal(err)
	}
	lost, err := writeProfile(&out, snap, mostRows)
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), readPage(t, out.Bytes()), snap, lost
}

// A profile becomes a page of its moment: the same bytes by stack, and nothing over time.
func TestProfile(t *testing.T) {
	html, p, snap, _ := profileOf(t, "../../../test/recordings/fsdp.gmt", maxLeaves)
	want, got := map[string]int64{}, map[string]int64{}
	for i := range snap.Samples {
		if x := &snap.Samples[i]; snapshot.OnGPU(x.Kind) {
			want["GPU "+x.GPU] += x.InuseBytes
			want[x.Owner] += x.InuseBytes
		}
	}
	held := p.at(0)
	for row, bytes := range held[len(held)-1] {
		if place := p.meta.Places[p.meta.Rows.Place[row]]; place.GPU {
			got[place.Name] += bytes
			got[p.text(p.meta.Rows.Owner[row])] += bytes
		}
	}
	for what, bytes := range want {
		if got[what] != bytes {
			t.Errorf("%s: %d bytes, the profile has %d", what, got[what], bytes)
		}
	}
	if len(want) < 4 {
		t.Errorf("only %v", want)
	}
	for _, size := range [][2]int64{{1300, 900}, {390, 844}} {
		b := open(t, html, size[0], size[1])
		if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
			t.Errorf("it is %s wide on %d", b.Ask("document.documentElement.scrollWidth"), size[0])
		}
		for _, id := range []string{"chart", "where", "compare", "events", "keys", "peak", "command"} {
			if b.Ask("document.getElementById('"+id+"').checkVisibility()") == "true" {
				t.Errorf("%s is there", id)
			}
		}
		b.Wants("the sum", b.Text("moment"), "In use: ")
		b.Wants("the graph", b.Ask("document.getElementById('flame').textContent"), "fsdp.py")
		b.Wants("the table", b.Text("table"), "BYTES", "OWNER", "STACK", "nccl")
		b.Wants("the address", b.Ask("location.hash"), "of=GPU+")
		b.Ask(`[...document.querySelectorAll("#legend button")].find((b) => b.textContent.startsWith("context")).click()`)
		b.Wants("one group", b.Text("table"), "context")
		if strings.Contains(b.Text("table"), "nccl") {
			t.Error("more than the group is there")
		}
		b.Quiet()
	}
}

// Where there are too many stacks, those of a kind and GPU are one.
func TestProfileIsBounded(t *testing.T) {
	_, all, _, _ := profileOf(t, "../../../test/recordings/fsdp.gmt", maxLeaves)
	_, p, _, lost := profileOf(t, "../../../test/recordings/fsdp.gmt", 10)
	if rows := len(p.meta.Rows.Place); rows < 10 || rows > 20 || rows >= len(all.meta.Rows.Place) {
		t.Errorf("%d rows of %d", rows, len(all.meta.Rows.Place))
	}
	if !slices.ContainsFunc(lost, func(c loss.Counter) bool { return c.Name == "timeline_sites_full" && c.Value > 0 }) {
		t.Errorf("%v", lost)
	}
	if got, want := slices.Max(p.totals(0)), slices.Max(all.totals(0)); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}
