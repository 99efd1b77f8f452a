//go:build !race

// The browser compiles for half a minute with the race detector, and tests the page.

package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/browsertest"
)

// tenants is a machine of two GPUs and three users in pods, of which one process is gone: it
// held most at night.
func tenants(t *testing.T) *served {
	h := &held{state: state.New()}
	boot := time.Unix(1_700_000_000, 0).UTC()
	h.apply(&record.Trace{Version: "test", Target: "every process", NVML: true, Boot: boot, Start: boot.Add(time.Second), APIs: []string{"", "cuMemAlloc_v2"}})
	type tenant struct {
		pid        uint32
		name       string
		who        snapshot.Who
		gpu        int
		now, night uint64 // GiB
	}
	all := []tenant{
		{5001, "python3", snapshot.Who{User: "ada", Namespace: "research", Pod: "llm-train-0", Container: "trainer", Command: "python3 train.py --model llama-8b --batch 16"}, 0, 38, 22},
		{5002, "python3", snapshot.Who{User: "ada", Namespace: "research", Pod: "llm-train-1", Container: "trainer", Command: "python3 train.py --model llama-8b --batch 16 --rank 1"}, 1, 38, 22},
		{6003, "tritonserver", snapshot.Who{User: "serving", Namespace: "prod", Pod: "triton-7d9f4", Container: "triton", Command: "tritonserver --model-repository=/models"}, 1, 24, 24},
		{7004, "jupyter", snapshot.Who{User: "bob", Command: "/usr/bin/python3 -m ipykernel_launcher -f kernel.json"}, 0, 6, 0},
	}
	reading := &record.Reading{Begin: uint64(10 * time.Second), Time: uint64(10*time.Second) + 1}
	for i := range 2 {
		reading.Devices = append(reading.Devices, record.Device{UUID: fmt.Sprint("GPU-", i), Label: fmt.Sprint(i), Name: "NVIDIA H100 80GB HBM3", Total: 80 << 30, Used: int64([]uint64{46, 64}[i] << 30), MemoryKnown: true, Listed: true, Instance: -1})
	}
	for i, x := range all {
		p := event.Process{PID: x.pid, Start: event.StartUnit}
		h.apply(&record.Process{Process: p, Target: true, Name: x.name, FromStart: true, Who: x.who})
		reading.Uses = append(reading.Uses, record.Use{Process: p, Device: x.gpu, Bytes: int64(x.now<<30 + 500<<20), Known: true})
		reading.Ordinals = append(reading.Ordinals, record.Ordinal{Process: p, Device: x.gpu})
		h.allocBy(p, time.Duration(i+2)*time.Second, uint64(i+1), uint64(i+1)<<40, x.now<<30, "/opt/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so", "at::empty_cuda")
	}
	h.apply(reading)
	const hours = 14
	h.at(hours * time.Hour)
	s := serve(t, Options{Source: h, Recording: func() (string, time.Time) { return "/var/lib/gpumemtrace/record/gpumemtrace-20231114-221321.gmt", boot }}, func(s *Server) {
		s.guard.host = "node7"
		for minute := range hours * 60 {
			x := &state.Totals{Meta: snapshot.Meta{Start: boot, Duration: time.Duration(minute) * time.Minute}}
			owned := map[state.Group]int64{}
			hold := func(pid int, name string, who snapshot.Who, gpu int, gib int64) {
				if gib > 0 {
					label := fmt.Sprint(gpu)
					x.Accounts = append(x.Accounts, snapshot.Account{PID: pid, Process: name, GPU: label, Total: gib << 30})
					x.Processes = append(x.Processes, snapshot.Process{PID: pid, Name: name, Who: who})
					owned[state.Group{GPU: label, Kind: event.KindDevice, Owner: "pytorch"}] += gib << 30
				}
			}
			for _, y := range all {
				gib := y.night
				if minute > 9*60 {
					gib = y.now
				}
				hold(int(y.pid), y.name, y.who, y.gpu, int64(gib))
			}
			if minute > 3*60 && minute < 5*60 { // at night
				hold(4242, "python3", snapshot.Who{User: "carl", Namespace: "research", Pod: "sweep-42", Container: "main", Command: "python3 sweep.py --trials 64"}, 0, int64(20+min(minute-3*60, 30)))
			}
			for group, bytes := range owned {
				x.Groups = append(x.Groups, state.GroupFigures{Group: group, LiveBytes: bytes})
			}
			s.history.take(x)
		}
	})
	return s
}

// A reader sees which user, pod and process holds a GPU now, and which did at the peak of the
// night, on a wide screen and on a phone.
func TestPageOfTenants(t *testing.T) {
	s := tenants(t)
	b := s.opened(t, 1280, 900)
	b.Wants("now", b.Text("processes"), "5001", "ada", "research/llm-train-0", "38.0 GiB")
	b.Wants("GPUs", b.Text("gpus"), "GPU 1 NVIDIA H100 80GB HBM3: 64.0 GiB of 80.0 GiB used (80.0%)")
	b.Wants("who is gone", b.Ask("document.querySelector('#processes .gone').textContent"), "4242", "until 03:12:20 UTC", "50.0 GiB")
	b.Wants("tabs", b.Text("places"), "GPU 0peak 72.0 GiB", "GPU 1peak 62.0 GiB")
	b.Picture("tenants")
	b.Zone("Asia/Tokyo")
	b.Run(chromedp.Navigate("about:blank"), chromedp.Navigate(s.url+"/#by=user&of=GPU 0")) // from another page: this one would write its own address again
	b.Until("document.querySelector('#chart canvas') && document.getElementById('legend').textContent.includes('carl')")
	b.Click("peak")
	b.Until("document.getElementById('moment').textContent.includes(', the peak')")
	b.Wants("the peak", b.Text("moment")+b.Text("command")+b.Text("table"), "Held at 01:43:20: 72.0 GiB, the peak", "gpumemtrace report /var/lib/gpumemtrace/record/gpumemtrace-20231114-221321.gmt --by line --at 2023-11-15T01:43:20.000Z", "python3 (4242)")
	b.Wants("the address", b.Ask("location.hash"), "at=2023-11-15T01")
	b.Run(chromedp.Focus(chromedp.CSS("#chart")))
	b.Keys(kb.Home)
	b.Wants("the first note, in UTC", b.Text("here"), "At 22:13:20, 22.0 GiB (")
	b.Picture("tenants-peak")
	s.fitsPhone(t, b)
	b.Picture("tenants-peak-phone")
	b.Quiet()
}

// fitsPhone shows a page as a phone does: nothing of it is cut off.
func (s *served) fitsPhone(t *testing.T, b *browsertest.Browser) {
	t.Helper()
	b.Run(chromedp.EmulateViewport(360, 780))
	b.Until("document.querySelector('#chart canvas').clientWidth < 360")
	if got := b.Ask("[document.documentElement.scrollWidth <= innerWidth, document.getElementById('processes').clientWidth <= document.getElementById('processes').parentElement.clientWidth].join()"); got != "true,true" {
		t.Errorf("the page and the table of processes fit 360 pixels: %s", got)
	}
}
