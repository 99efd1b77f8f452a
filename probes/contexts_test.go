package probes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// The context that is current on a thread, and its device, by every function
// that changes or tells them.
func TestContexts(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "device 1", "device 0")
	tr := traced(t, p, Options{})
	last := func(commands ...string) event.Event {
		t.Helper()
		tr.drain()
		run(t, p, commands...)
		events := tr.drain()
		if len(events) == 0 {
			t.Fatalf("%q gave no event", commands)
		}
		return events[len(events)-1]
	}
	if e := last("cuMemAlloc_v2"); e.Ctx != 0 || e.Device != event.NoDevice {
		t.Errorf("before the context is known: ctx %#x device %d", e.Ctx, e.Device)
	}
	outer := last("cuCtxSetCurrent", "cuMemAlloc_v2").Ctx
	if outer == 0 {
		t.Fatal("after cuCtxSetCurrent: no context")
	}
	created := last("cuCtxCreate_v2", "cuMemAlloc_v2").Ctx
	if created == 0 || created == outer {
		t.Errorf("after cuCtxCreate_v2: ctx %#x, before %#x", created, outer)
	}
	for _, v := range []string{"", "_v2"} {
		if e := last("raw cuCtxPushCurrent"+v+" "+fmt.Sprint(outer), "cuMemAlloc_v2"); e.Ctx != outer {
			t.Errorf("after cuCtxPushCurrent%s: ctx %#x, want %#x", v, e.Ctx, outer)
		}
		if e := last("raw cuCtxPopCurrent"+v+" "+scratch(t, p), "cuMemAlloc_v2"); e.Ctx != created {
			t.Errorf("after cuCtxPopCurrent%s: ctx %#x, want %#x", v, e.Ctx, created)
		}
	}
	if e := last("free cuMemAlloc_v2", "cuCtxDestroy_v2", "cuMemAlloc_v2"); e.Ctx != outer {
		t.Errorf("after cuCtxDestroy_v2: ctx %#x, want %#x", e.Ctx, outer)
	}
	// To set none is to pop.
	run(t, p, "raw cuCtxPushCurrent_v2 "+fmt.Sprint(outer), "cuCtxCreate_v2")
	if e := last("raw cuCtxSetCurrent 0", "cuMemAlloc_v2"); e.Ctx != outer {
		t.Errorf("after cuCtxSetCurrent(NULL): ctx %#x, want %#x", e.Ctx, outer)
	}
	run(t, p, "raw cuCtxPopCurrent_v2 "+scratch(t, p))
	// Deeper than the kernel side keeps, and back.
	for range 12 {
		run(t, p, "cuCtxPushCurrent")
	}
	if e := last("cuMemAlloc_v2"); e.Ctx != 0 {
		t.Errorf("twelve levels deep: ctx %#x, want not known", e.Ctx)
	}
	for range 12 {
		run(t, p, "cuCtxPopCurrent")
	}
	if e := last("cuMemAlloc_v2"); e.Ctx != outer {
		t.Errorf("back from twelve levels: ctx %#x, want %#x", e.Ctx, outer)
	}
	tr.wantLoss(nil)
}

// The contexts of a process end with its image: after an exec the thread has none of them.
func TestExecEndsContexts(t *testing.T) {
	for name, exec := range map[string]string{"leader": "exec %s", "another thread": "threads 2 { init; cuCtxCreate_v2; cuCtxCreate_v2; exec %s }"} {
		t.Run(name, func(t *testing.T) {
			p := start(t, testcuda.Workload, testcuda.Options{})
			tr := traced(t, p, Options{})
			run(t, p, "device 1", "init", "cuCtxCreate_v2", "cuCtxCreate_v2", "cuMemAlloc_v2")
			before := tr.drain()
			if e := before[len(before)-1]; e.Ctx == 0 {
				t.Fatalf("before the exec: %+v", e)
			}
			if err := p.Send(fmt.Sprintf(exec, testcuda.Get(t).Path(testcuda.Workload))); err != nil {
				t.Fatal(err)
			}
			run(t, p, "init", "raw cuCtxPopCurrent_v2 "+scratch(t, p), "expect 201 cuMemAlloc_v2")
			after := tr.drain()
			if e := after[len(after)-1]; e.Op != event.OpAlloc || e.Result != 201 || e.Ctx != 0 {
				t.Errorf("the new image has no context, and the event says %#x: %+v", e.Ctx, e)
			}
		})
	}
}

// What a late target's threads ask of their device soon after the start tells
// which one they are on, for as long as their context stays.
func TestGlimpse(t *testing.T) {
	for _, c := range []struct {
		ask    string
		device int32
	}{
		{"cuCtxGetDevice", 1},
		{"raw cuCtxGetDevice_v2 %s", 1},
		{"cuCtxGetDevice_v2", event.NoDevice}, // of a context by name, which need not be the current one
	} {
		t.Run(c.ask, func(t *testing.T) {
			p := start(t, testcuda.Workload, testcuda.Options{})
			run(t, p, "device 1")
			ask := c.ask
			if strings.Contains(ask, "%s") {
				ask = fmt.Sprintf(ask, scratch(t, p))
			}
			device := event.NoDevice
			for range 5 { // a slow machine may miss the moment
				tr := traced(t, p, Options{})
				run(t, p, ask, "cuMemAlloc_v2")
				events := tr.drain()
				if len(events) != 1 {
					t.Fatalf("events:%s", format(events))
				}
				device = events[0].Device
				eventually(t, "the end of the glimpse", func() bool {
					tr.libs.mu.Lock()
					defer tr.libs.mu.Unlock()
					return len(tr.libs.windows) == 0
				})
				run(t, p, "cuMemAlloc_v2")
				if after := tr.drain(); len(after) != 1 || after[0].Device != device {
					t.Errorf("after the glimpse of device %d:%s", device, format(after))
				}
				tr.wantLoss(nil)
				if device == c.device {
					return
				}
			}
			t.Errorf("device %d, want %d", device, c.device)
		})
	}
}

// scratch returns the address of writable memory of the workload.
func scratch(t *testing.T, p *testcuda.Process) string {
	t.Helper()
	run(t, p, "cuMemHostRegister 4096")
	o, err := p.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range o {
		if o.API == "cuMemHostRegister" {
			return fmt.Sprint(o.Addr)
		}
	}
	t.Fatal("no registered memory")
	return ""
}

func TestRuntimeDevice(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "cudaMalloc")
	tr := traced(t, p, Options{API: APIRuntime})
	for device := range int32(2) {
		run(t, p, fmt.Sprintf("cudaSetDevice %d", device), "cudaMalloc")
		events := tr.drain()
		if len(events) != 1 || events[0].Device != device {
			t.Errorf("after cudaSetDevice %d:%s on %d", device, format(events), events[0].Device)
		}
	}
}
