package heap

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/torchtest"
)

// A real PyTorch, with tensors in the memory of the CPU.
func TestTorch(t *testing.T) {
	torchtest.Need(t)
	p := start(t, torchtest.Python, nil, "testdata/torch_holders.py")
	for _, pause := range []bool{false, true} {
		r := read(t, p.pid, Options{Keys: AllKeys, CPU: true, Pause: pause})
		p.check(t, r)
		for _, want := range p.said.Storages {
			if !slices.ContainsFunc(r.Storages, func(s holder.Storage) bool { return s.Address == want[0] && s.Bytes == want[1] }) {
				t.Errorf("a storage at %#x of %d bytes was not found", want[0], want[1])
			}
		}
		// The graphs of four losses, and the losses themselves.
		if len(r.Retainers) == 0 {
			t.Fatal("no retainers")
		}
		first := r.Retainers[0]
		if first.Holder != "trainer.history" || first.Class != "list" || first.Items != 4 || first.Graph < 4*128*64*4 || first.Retained != first.Graph+4*4 {
			t.Errorf("%+v", first)
		}
		for _, s := range r.Storages {
			if len(s.Shape) == 0 && s.Shape != nil {
				t.Errorf("%s: a scalar has a shape, which a recording leaves out", s.Holder)
			}
			// What the view is of lies in the same storage, and nothing else holds it.
			if s.Holder == "view" && (s.Tensors != 2 || s.Holders != 2 || !slices.Equal(s.More, []string{"view._base"})) {
				t.Errorf("%+v", s)
			}
			if (s.Class == "Parameter" || s.Holder == "wrapped.weight") != s.RequiresGrad && !s.Stuck() && s.Role != holder.Activation && s.Role != holder.NoRole {
				t.Errorf("%+v", s)
			}
		}
	}
	r := read(t, p.pid, Options{Keys: NoKeys})
	for _, s := range r.Storages {
		if slices.Contains([]byte(s.Holder), '"') && s.Holder[0] != 't' {
			t.Errorf("%s shows a key", s.Holder)
		}
		if s.Role == holder.OptimizerState && !strings.HasPrefix(s.Module, "model[") && s.Module != "wrapped" {
			t.Errorf("without keys %s has module %q", s.Holder, s.Module)
		}
	}
}

// A model in training is kept by its optimizer more than by small tensors, however many there are,
// and memory of the CPU is left out unless it is wanted.
func TestRetainersOfTraining(t *testing.T) {
	torchtest.Need(t)
	p := start(t, torchtest.Python, nil, "-c", `
import json, os, sys, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(500, 500), torch.nn.Linear(500, 500))
optimizer = torch.optim.AdamW(model.parameters())
out = model(torch.zeros(1, 500)).sum()
out.backward()
optimizer.step()
class Small: pass
for i in range(200):
    globals()["small%d" % i] = s = Small()
    s.tensor = torch.zeros(17)
print(json.dumps({"pid": os.getpid()}), flush=True)
sys.stdin.readline()
`)
	r := read(t, p.pid, Options{Keys: AllKeys, CPU: true})
	if len(r.Retainers) == 0 || r.Retainers[0].Holder != "optimizer.state" || r.Retainers[0].Retained < 4*4*500*500 {
		t.Errorf("%+v come first", r.Retainers[:min(3, len(r.Retainers))])
	}
	if r := read(t, p.pid, Options{Keys: AllKeys}); len(r.Retainers) != 0 || len(r.Storages) < 200 {
		t.Errorf("%d retainers of memory that no GPU has, %d storages", len(r.Retainers), len(r.Storages))
	}
}

// The buckets of a real DistributedDataParallel are its reducer's, with the sizes that it logs, and gradients are
// not.
func TestBuckets(t *testing.T) {
	torchtest.Need(t)
	p := start(t, torchtest.Python, nil, "-c", `
import json, os, sys, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/store", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(600, 600) for _ in range(6)]), bucket_cap_mb=3)
for _ in range(3):
    model(torch.zeros(1, 600)).sum().backward()
sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
print(json.dumps({"pid": os.getpid(), "storages": [[0, int(n)] for n in sizes.split(",")]}), flush=True)
sys.stdin.readline()
`, t.TempDir())
	r := read(t, p.pid, Options{CPU: true})
	var want, got []uint64
	for _, x := range p.said.Storages {
		want = append(want, x[1])
	}
	gradients := 0
	for _, s := range r.Storages {
		switch {
		case s.Holder == "model.reducer":
			got = append(got, s.Bytes)
		case s.Role == holder.Gradient && strings.HasPrefix(s.Holder, "model.module[") && strings.HasSuffix(s.Holder, ".grad"):
			gradients++
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < 2 || !slices.Equal(got, want) || gradients != 12 {
		t.Errorf("buckets of %d bytes, want %d; %d gradients, want 12", got, want, gradients)
	}
}
