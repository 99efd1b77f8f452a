//go:build !race

// The browser compiles for half a minute with the race detector, and tests the page.

package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
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
	s := serve(t, Options{Source: h, Version: "test", Recording: func() (string, time.Time) { return "/var/lib/gpumemtrace/record/gpumemtrace-20231114-221321.gmt", boot }}, func(s *Server) {
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
	b.Wants("now", b.Text("now"), "5001", "ada", "research/llm-train-0", "38.0 GiB")
	picture(t, b, "tenants-light")
	b.Zone("Asia/Tokyo")
	b.Run(chromedp.Navigate(s.url + "/?at=peak&by=user&minutes=720"))
	b.Until("document.querySelector('#chart canvas') && document.getElementById('legend').textContent.includes('carl')")
	b.Wants("the peak", b.Text("now"), "Peak of all GPUs together in the last 12 h: 118 GiB at 01:43:20 UTC", "carl 1 process", "research/sweep-42", "python3 sweep.py", "sudo gpumemtrace report /var/lib/gpumemtrace/record/gpumemtrace-20231114-221321.gmt --by line --at 2023-11-15T01:43:20Z")
	b.Wants("who is gone", b.Ask("[...document.querySelectorAll('#now section[aria-label=Processes] .gone')].map((e) => e.textContent).join()"), "4242", "until 03:12:20 UTC", "50.0 GiB")
	b.Run(chromedp.Focus(chromedp.CSS("#chart")))
	b.Keys(kb.Home)
	b.Wants("the first note, in UTC", b.Text("here"), "22:13:20: 68.0 GiB")
	b.Keys(kb.End)
	picture(t, b, "tenants-peak-light")
	b.Dark(true)
	picture(t, b, "tenants-peak-dark")
	b.Dark(false)
	b.Run(chromedp.EmulateViewport(360, 780))
	b.Until("document.querySelector('#chart canvas').clientWidth < 360")
	if b.Ask("document.documentElement.scrollWidth <= innerWidth") != "true" {
		t.Errorf("it is %s wide on 360", b.Ask("document.documentElement.scrollWidth"))
	}
	picture(t, b, "tenants-peak-phone")
	b.Dark(true)
	picture(t, b, "tenants-peak-phone-dark")
	b.Run(chromedp.Navigate(s.url + "/?gpu=0&by=pod&minutes=720"))
	b.Until("document.querySelector('#chart canvas') && document.getElementById('legend').textContent.includes('sweep-42')")
	if got := b.Text("legend"); strings.Contains(got, "triton") {
		t.Errorf("the chart of GPU 0 has %q", got)
	}
	b.Dark(false)
	picture(t, b, "tenants-gpu-phone")
	b.Quiet()
}
