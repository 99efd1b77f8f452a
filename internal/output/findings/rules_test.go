package findings

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// A ruleCase is a snapshot in which a rule finds something, and one that is alike, in which nothing is
// wrong.
type ruleCase struct {
	rule        string
	wrong, fine *snapshot.Snapshot
	says        string // how the finding's sentence begins
	bytes       int64
}

func TestRules(t *testing.T) {
	ofHeap := func(storages ...holder.Storage) *snapshot.Snapshot {
		m := training()
		m.heap(storages...)
		return m.Snapshot
	}
	cases := []ruleCase{
		{"growth", func() *snapshot.Snapshot { m := training(); m.steps(20, 4*mib); return m.Snapshot }(),
			func() *snapshot.Snapshot { m := training(); m.steps(20, 512); return m.Snapshot }(),
			"`history[*]` keeps 4.00 MiB more with each training step, 80.0 MiB so far, made at me/train.py:40 collect.", 80 * mib},
		{"growth", func() *snapshot.Snapshot { // the last reading of the heap was in the middle of the steps
			m := training()
			m.steps(20, 4*mib)
			later := m.Samples[m.Live[0].Sample]
			later.Holder = ""
			m.Samples = append(m.Samples, later)
			for i := range m.Live[16:] {
				m.Live[16+i].Sample = len(m.Samples) - 1
			}
			return m.Snapshot
		}(), func() *snapshot.Snapshot { m := training(); m.steps(4, 4*mib); return m.Snapshot }(),
			"`history[*]` keeps 4.00 MiB more with each training step, 80.0 MiB so far, made at me/train.py:40 collect.", 80 * mib},
		{"growth", func() *snapshot.Snapshot { m := training(); m.steps(20, 4*mib); return m.Snapshot }(),
			func() *snapshot.Snapshot { // made in the first steps alone
				m := training()
				m.steps(20, 4*mib)
				m.Live = m.Live[:15]
				return m.Snapshot
			}(), "`history[*]` keeps 4.00 MiB more", 80 * mib},
		{"old-graph", func() *snapshot.Snapshot {
			m := training()
			m.steps(20, 0)
			for i := range 4 {
				m.Live = append(m.Live, snapshot.Allocation{Address: uint64(1000 + i), Size: 32 * mib, Time: m.Meta.Start.Add(33 * time.Second)})
			}
			m.heap(storages(4, "hidden.grad_fn (graph of 40 nodes)", 32*mib, func(s *holder.Storage) { s.Role = holder.Activation })...)
			return m.Snapshot
		}(), func() *snapshot.Snapshot { // of the step that runs
			m := training()
			m.steps(20, 0)
			m.Live = append(m.Live, snapshot.Allocation{Address: 1000, Size: 32 * mib, Time: m.Meta.Start.Add(50*time.Second - time.Millisecond)})
			m.heap(storages(1, "loss.grad_fn", 32*mib, func(s *holder.Storage) { s.Role = holder.Activation })...)
			return m.Snapshot
		}(), "`hidden` still links to the graphs of earlier training steps, which keep 128 MiB in 4 tensors.", 128 * mib},
		{"collected-graphs", func() *snapshot.Snapshot {
			m := training()
			m.heap().Retainers = []holder.Retainer{{Holder: "losses", Class: "list", Items: 40, Retained: 80 * mib, Graph: 79 * mib, Storages: 40}}
			return m.Snapshot
		}(), func() *snapshot.Snapshot { // the local variable of a recurrent model
			m := training()
			m.heap().Retainers = []holder.Retainer{{Holder: "forward() in rnn.py:8: local states", Class: "list", Items: 40, Retained: 80 * mib, Graph: 79 * mib, Storages: 40}}
			return m.Snapshot
		}(), "`losses`, a list of 40 items, keeps the autograd graphs of its items: 79.0 MiB.", 79 * mib},
		{"gathered", gathers(24, 24, "aten::softmax", 0), gathers(24, 40, "aten::softmax", 0), // a window: some were freed
			"`outputs[*]` keeps all results on the GPU: 24 tensors (768 MiB), made at me/eval.py:9 evaluate.", 768 * mib},
		{"gathered", gathers(24, 24, "aten::softmax", 0), gathers(24, 24, "aten::randn", 0), "`outputs[*]` keeps all", 768 * mib},   // inputs
		{"gathered", gathers(24, 24, "aten::softmax", 0), gathers(24, 24, "aten::softmax", 9), "`outputs[*]` keeps all", 768 * mib}, // the program went on to something else
		{"small-view", ofHeap(storages(24, "outs[%d]", 32*mib, func(s *holder.Storage) { s.Shape = []int64{1, 16384} })...),
			ofHeap(storages(24, "outs[%d]", 32*mib, nil)...),
			"24 small tensors, `outs[*]`, of 64.0 KiB each, keep storages of 768 MiB in all.", 768 * mib},
		{"small-view", ofHeap(storages(24, "outs[%d]", 32*mib, func(s *holder.Storage) { // under no_grad, too
			s.Shape, s.Tensors, s.Holders, s.More = []int64{1, 16384}, 2, 2, []string{s.Holder + "._base"}
		})...), ofHeap(storages(24, "outs[%d]", 32*mib, func(s *holder.Storage) {
			s.Shape, s.Tensors, s.Holders, s.More = []int64{1, 16384}, 2, 2, []string{"whole"}
		})...), "24 small tensors, `outs[*]`, of 64.0 KiB each, keep storages of 768 MiB in all.", 768 * mib},
		{"small-view", ofHeap(storages(1, "first", 32*mib, func(s *holder.Storage) { s.Shape = []int64{10} })...),
			ofHeap(storages(1, "flat", 32*mib, func(s *holder.Storage) { s.Shape, s.Tensors = []int64{10}, 40 })...), // other views are of the rest
			"`first` has 40 B, but keeps a storage of 32.0 MiB.", 32 * mib},
		{"small-view", ofHeap(storages(2, "losses[%d]", 32*mib, func(s *holder.Storage) { s.Shape = nil })...),
			ofHeap(storages(1, "loss", 32*mib, func(s *holder.Storage) { s.Shape = nil })...), // F.mse_loss makes its mean in a storage of that size
			"2 small tensors, `losses[*]`, of 4 B each, keep storages of 64.0 MiB in all.", 64 * mib},
		{"idle-module", idle("aten::linear", false), idle("aten::linear", true), // a projection that is used without a call
			"`model.decoder` was not called while it was traced, but other modules were: its parameters take 64.0 MiB.", 64 * mib},
		{"stale-gradients", stale(stacks.Activation), stale(stacks.Gradient), // the backward pass has begun
			"Gradients from before the last step are still held at the peak: 256 MiB, in 1 tensor.", 256 * mib},
		{"hook", ofHeap(storages(2, "model.encoder[%d]._forward_hooks[3].<closure>.seen[0]", 32*mib, nil)...),
			ofHeap(storages(2, "model.encoder[%d]._forward_pre_hooks[3].state", 32*mib, func(s *holder.Storage) { s.Role = holder.Parameter })...), // FSDP's
			"A hook keeps 64.0 MiB in 2 tensors: `model.encoder[*]._forward_hooks[*].<closure>.seen[*]`.", 64 * mib},
		{"traceback", ofHeap(storages(1, "sys.last_traceback.tb_frame.<local>.hidden", 32*mib, nil)...), ofHeap(storages(1, "hidden", 32*mib, nil)...),
			"A stored exception keeps the local variables of the functions that it passed through: 32.0 MiB in 1 tensor, `sys.last_traceback.tb_frame.<local>.hidden`.", 32 * mib},
		{"traceback", ofHeap(append(storages(4, "failures[%d].__traceback__.tb_frame.<local>.hidden", 32*mib, nil), storages(4, "failures[%d].__traceback__.tb_next.tb_frame.<local>.x", 16*mib, nil)...)...),
			ofHeap(storages(4, "failures[%d].__traceback__.tb_frame.<local>.hidden", 1024, nil)...),
			"A stored exception keeps the local variables of the functions that it passed through: 192 MiB in 8 tensors, `failures[*].__traceback__.tb_frame.<local>.hidden` and 1 more.", 192 * mib},
		{"second-copy", ofHeap(copies(8)...), ofHeap(copies(3)...),
			"`checkpoint` holds 8 tensors with the shapes of the model's parameters: 128 MiB.", 128 * mib},
		{"cycle", ofHeap(storages(2, "reference cycle: Scale.x (class Scale, scale.py:12)", 32*mib, nil)...),
			ofHeap(storages(2, "reference cycle: Scale.x (class Scale, scale.py:12)", 32*mib, func(s *holder.Storage) { s.Cycle = true })...), // will be collected
			"64.0 MiB in 2 tensors leaked: they are in a reference cycle that gc.collect() cannot free: Scale.x (class Scale, scale.py:12).", 64 * mib},
		{"waiting", blocks(holder.Waiting, 128*mib), blocks(holder.Free, 128*mib), "10 tensors (1.25 GiB) are freed,", 1280 * mib},
		{"waiting", blocks(holder.Waiting, 128*mib), blocks(holder.Waiting, 0), // once each: buckets that were made anew
			"10 tensors (1.25 GiB) are freed, but PyTorch cannot reuse them yet: they wait for another stream (record_stream).", 1280 * mib},
		{"optimizer-temporaries", func() *snapshot.Snapshot {
			m := training()
			m.tensors(stacks.OptimizerTemporary, "aten::_foreach_sqrt", 100, 400*mib, adam("_multi_tensor_adam")...)
			return m.Snapshot
		}(), func() *snapshot.Snapshot {
			m := training()
			m.tensors(stacks.OptimizerState, "aten::zeros_like", 100, 400*mib, adam("Adam._init_group")...)
			m.tensors(stacks.OptimizerTemporary, "aten::sqrt", 1, 400*mib, adam("_single_tensor_adam")...)
			return m.Snapshot
		}(), "The optimizer's step at me/train.py:25 update makes 400 MiB of temporary tensors at the peak, because it updates all parameters together (foreach).", 400 * mib},
		{"type-copy", func() *snapshot.Snapshot {
			m := training()
			m.tensors(stacks.Activation, "aten::to", 1, 512*mib, native("at::_ops::to_dtype::call", 9), python("loss", "/home/me/train.py", 44), main)
			return m.Snapshot
		}(), func() *snapshot.Snapshot { // many casts of weights; inputs that are copied to the GPU; what save_on_cpu copies back
			m := training()
			m.tensors(stacks.Activation, "aten::to", 100, 512*mib, native("at::_ops::to_dtype::call", 9), python("loss", "/home/me/train.py", 44), main)
			m.tensors(stacks.Input, "aten::to", 1, 512*mib, native("at::_ops::to_dtype::call", 9), python("loss", "/home/me/train.py", 44), main)
			m.tensors(stacks.Temporary, "aten::to", 1, 512*mib, native("at::_ops::to_dtype_layout::call", 9), python("save_on_cpu.__init__.<locals>.unpack_from_cpu", torch+"autograd/graph.py", 370), main)
			return m.Snapshot
		}(), "A copy of one tensor in another type takes 512 MiB of the peak, made at me/train.py:44 loss.", 512 * mib},
		{"checkpoint", checkpoints(false, 2), checkpoints(true, 2),
			"Gradient checkpointing has no effect: 24 activations (2.00 GiB), made at me/model.py:8 Block.forward, stay until the backward pass, which recomputes nothing.", 2048 * mib},
		{"checkpoint", checkpoints(false, 2), checkpoints(false, 1), // the first backward pass may only have begun
			"Gradient checkpointing has no effect: 24 activations", 2048 * mib},
		{"checkpoint", evalMode(true), evalMode(false),
			"Gradient checkpointing of `model.layers[*]` has no effect, because the model is in eval mode: 24 activations (2.00 GiB), made at me/model.py:8 Block.forward, stay until", 2048 * mib},
		{"workspaces", func() *snapshot.Snapshot {
			m := training()
			m.tensors(stacks.Workspace, "aten::addmm", 16, 512*mib, python("step", "/home/me/train.py", 20), main)
			return m.Snapshot
		}(), func() *snapshot.Snapshot {
			m := training()
			m.tensors(stacks.Workspace, "aten::addmm", 4, 128*mib, python("step", "/home/me/train.py", 20), main)
			m.tensors(stacks.Workspace, "aten::addmm", 4, 4*mib, python("step", "/home/me/train.py", 20), main)
			return m.Snapshot
		}(), "cuBLAS keeps 16 workspaces (512 MiB), one for each stream and thread that multiplies matrices; most are from me/train.py:20 step.", 512 * mib},
		{"no-backward", inference(false), inference(true),
			"The model runs with gradients on, but no backward pass has followed so far: autograd keeps 256 MiB of activations, most of them made at me/train.py:20 step.", 256 * mib},
		{"no-backward", ranOut(false), ranOut(true), "The model runs with gradients on", 256 * mib},
		{"no-backward", evaluation(false, 11*time.Second), evaluation(true, 11*time.Second), // the modules are in training mode
			"The model runs with gradients on, but no backward pass has followed so far: autograd keeps 256 MiB of activations, most of them made at me/train.py:20 step.", 256 * mib},
		{"no-backward", evaluation(false, 11*time.Second), evaluation(false, 9*time.Second), "The model runs with gradients on", 256 * mib}, // a step may come
		{"frozen-copy", trees(false, 8), trees(true, 8), "`average` has the same layers as `model`, and needs no gradient: 128 MiB.", 128 * mib},
		{"frozen-copy", trees(false, 8), trees(false, 5), "`average` has the same layers as `model`", 128 * mib}, // a smaller model
		{"fragmentation", inPieces(0), inPieces(700 * mib), "Fragmentation wastes 800 MiB of the 4.00 GiB that PyTorch reserved: free pieces lie beside live tensors, and cannot be given back.", 800 * mib},
		{"communicators", groups(8), groups(2), "NCCL holds up to 1.98 GiB on GPU 0 for 8 communicators, made at me/train.py:31 <module>.", 8 * 254 * mib},
		{"plans", planned(24), planned(4), "cuFFT keeps 768 MiB in 24 allocations for its plans, of which PyTorch and CuPy keep one for each shape and type; most are from me/train.py:31 <module>.", 768 * mib},
		{"buckets", bucketed(256 * mib), bucketed(1024 * mib), // they are of others
			"DistributedDataParallel has a copy of each gradient in its buckets: 256 MiB.", 256 * mib},
		{"buckets", bucketed(512 * mib), bucketed(0), // each gradient is a part of a bucket
			"DistributedDataParallel has a copy of each gradient in its buckets: 512 MiB.", 512 * mib},
		{"graph-pools", pools("1.0", "2.0", "3.0"), pools("1.0", "", "0.1"), "3 private pools of CUDA graphs take 300 MiB in all: they cannot use each other's memory.", 200 * mib},
		{"second-gpu", func() *snapshot.Snapshot {
			m := training()
			m.hold(context(7, "1"), 17, 518*mib, python("load", torch+"serialization.py", 900), python("resume", "/home/me/train.py", 12), main)
			return m.Snapshot
		}(), func() *snapshot.Snapshot { // it computes on both
			m := training()
			m.hold(context(7, "1"), 17, 518*mib, main)
			m.hold(snapshot.Labels{Kind: snapshot.Tensor, PID: 7, GPU: "1"}, 1, 300*mib, main)
			return m.Snapshot
		}(), "python3 (pid 7) works on GPU 0, but has opened GPU 1 too: 518 MiB there, of which 518 MiB is CUDA's context, made at me/train.py:12 resume.", 518 * mib},
		{"second-gpu", func() *snapshot.Snapshot {
			m := training()
			load := []*snapshot.Location{python("load", torch+"serialization.py", 900), python("resume", "/home/me/train.py", 12), main}
			m.hold(context(7, "1"), 17, 518*mib, load...)
			m.hold(snapshot.Labels{Kind: snapshot.Cached, PID: 7, Process: "python3", GPU: "1"}, 1, 256*mib, load...)
			return m.Snapshot
		}(), func() *snapshot.Snapshot { // it computes with what it loaded
			m := training()
			m.hold(context(7, "1"), 17, 518*mib, python("load", torch+"serialization.py", 900), main)
			m.hold(snapshot.Labels{Kind: snapshot.Tensor, PID: 7, GPU: "1"}, 1, 300*mib, python("step", "/home/me/train.py", 20), main)
			return m.Snapshot
		}(), "python3 (pid 7) works on GPU 0, but has opened GPU 1 too: 774 MiB there, of which 518 MiB is CUDA's context, made at me/train.py:12 resume.", 774 * mib},
		{"second-gpu", ranks("1"), ranks("0"), "python3 (pid 7) works on GPU 0, but has opened GPU 1 too: 774 MiB there, of which 518 MiB is CUDA's context, made at me/train.py:31 <module>.", 774 * mib},
		{"workers", spawned("python3 train.py"), func() *snapshot.Snapshot { // the parent has a context alone, and its child computes
			s := spawned("python3 train.py")
			for i := range s.Samples {
				s.Samples[i].PID %= 11
			}
			for i := range s.Processes {
				s.Processes[i].PID %= 11
			}
			return s
		}(), "3 workers of python3 (pid 7)", 3 * 518 * mib},
		{"workers", spawned("from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=9)"), spawned("python3 other.py"),
			"3 workers of python3 (pid 7) hold a CUDA context on GPU 0 and hardly anything else: 1.52 GiB, made at me/data.py:5 start.", 3 * 518 * mib},
		{"workers", startedBy(7), startedBy(5), "3 workers of python3 (pid 7)", 3 * 518 * mib},
		{"workers", func() *snapshot.Snapshot { // each has loaded a kernel
			m := made{spawned("python3 train.py")}
			for pid := 11; pid < 14; pid++ {
				m.hold(snapshot.Labels{Kind: "local_memory", PID: pid, Process: "python3", GPU: "0"}, 1, 90*mib, snapshottest.Frame("[local memory]", "", 0))
			}
			return m.Snapshot
		}(), func() *snapshot.Snapshot { // each computes
			m := made{spawned("python3 train.py")}
			for pid := 11; pid < 14; pid++ {
				m.hold(snapshot.Labels{Kind: snapshot.Tensor, PID: pid, Process: "python3", GPU: "0"}, 1, 90*mib, main)
			}
			return m.Snapshot
		}(), "3 workers of python3 (pid 7) hold a CUDA context on GPU 0 and hardly anything else: 1.78 GiB", 3 * 608 * mib},
		{"orphan", left(45 * time.Second), left(55 * time.Second), // it may still end
			"python3 (pid 11) has outlived the process that started it (pid 7), which ended 45s after the trace began: 15s later it still holds 518 MiB.", 518 * mib},
		{"orphan", left(45 * time.Second), spawned("python3 train.py"), "python3 (pid 11) has outlived the process that started it (pid 7)", 518 * mib},
		{"import", imported(snapshot.Tensor, "<frozen importlib._bootstrap>"), imported(event.KindContext.String(), "<frozen importlib._bootstrap>"), "The import at me/train.py:31 <module> takes 8.00 GiB of the GPU.", 8192 * mib},
		{"import", imported(event.KindDevice.String(), "<frozen importlib._bootstrap>"), imported(event.KindDevice.String(), "/home/me/grid.py"), "The import at me/train.py:31 <module> takes 8.00 GiB of the GPU.", 8192 * mib},
	}
	for i := range Rules {
		name := Rules[i].Name
		if name != "setting" && !slices.ContainsFunc(cases, func(c ruleCase) bool { return c.rule == name }) {
			t.Errorf("%s has no case", name)
		}
	}
	for _, c := range cases {
		t.Run(c.rule, func(t *testing.T) {
			of := func(s *snapshot.Snapshot) (out []Finding) {
				for _, f := range Find(s, s).Findings {
					if f.Rule == c.rule {
						out = append(out, f)
					}
				}
				return out
			}
			if got := of(c.wrong); len(got) != 1 || !strings.HasPrefix(got[0].Says, c.says) || got[0].Bytes != c.bytes || got[0].Change == "" {
				t.Errorf("found %+v, want %q, %d bytes", got, c.says, c.bytes)
			}
			if got := of(c.fine); len(got) != 0 {
				t.Errorf("found %+v where nothing is wrong", got)
			}
		})
	}
}

// A setting that helps is what to change about fragmentation, and a finding where there is none.
func TestSettings(t *testing.T) {
	helps := Setting{PID: 7, Process: "python3", GPU: "0", Name: "max_split_size_mb:64", Says: "With it PyTorch would have reserved 3.00 GiB.", Saves: 500 * mib}
	use := "Start the program with PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64 instead of the value that it may have, and unset PYTORCH_ALLOC_CONF. It may be slower."
	for _, c := range []struct {
		s    *snapshot.Snapshot
		want Finding
	}{
		{inPieces(0), Finding{Rule: "fragmentation", Says: "Fragmentation wastes 800 MiB of the 4.00 GiB that PyTorch reserved: free pieces lie beside live tensors, and cannot be given back.", Bytes: 500 * mib, Change: helps.Says + " " + use}},
		{inPieces(700 * mib), Finding{Rule: "setting", Says: "PyTorch reserves more than its tensors need in python3 (pid 7). " + helps.Says, Bytes: 500 * mib, Change: use}},
	} {
		if got := Find(c.s, c.s, helps).Findings; len(got) != 1 || got[0] != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
	other := helps
	other.PID = 8
	if got := Find(inPieces(0), inPieces(0), other).Of("fragmentation")[0]; got.Bytes != 800*mib {
		t.Errorf("another process's setting is its own: %+v", got)
	}
}

// Expandable segments are what CUDA's IPC may not work with.
func TestSettingWarns(t *testing.T) {
	for name, want := range map[string]bool{"expandable_segments:True": true, "expandable_segments:False": false} {
		if says := (&Setting{Name: name}).use(); strings.Contains(says, "CUDA IPC") != want {
			t.Errorf("%s: %s", name, says)
		}
	}
}

// CUDA knows a GPU by its number in the order of PCI, and not by each label.
func TestVisibleGPU(t *testing.T) {
	for gpu, want := range map[string]string{"0": " CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,", "0:1": " CUDA_VISIBLE_DEVICES set to its own alone,", "cuda:0": " CUDA_VISIBLE_DEVICES set to its own alone,"} {
		m := made{&snapshot.Snapshot{Accounts: []snapshot.Account{{Known: true}}}}
		m.hold(snapshot.Labels{Kind: event.KindDevice.String(), Owner: "jax", PID: 7, Process: "python3", GPU: gpu}, 1, 2048*mib, main)
		m.hold(context(7, "1"), 17, 518*mib, main)
		if got := Find(m.Snapshot, m.Snapshot).Of("second-gpu"); len(got) != 1 || !strings.Contains(got[0].Change, want) {
			t.Errorf("%+v, want %s", got, want)
		}
	}
}

// Graphs that are captured after the peak keep their pools.
func TestPoolsAtEnd(t *testing.T) {
	want := "4 private pools of CUDA graphs take 400 MiB in all:"
	for _, moments := range [][2]*snapshot.Snapshot{{pools("1.0", "2.0"), pools("1.0", "2.0", "3.0", "4.0")}, {pools("1.0", "2.0", "3.0", "4.0"), pools()}} {
		if got := Find(moments[0], moments[1]).Of("graph-pools"); len(got) != 1 || !strings.HasPrefix(got[0].Says, want) {
			t.Errorf("%+v, want %s", got, want)
		}
	}
}

// What is not recorded is not looked for.
func TestLacking(t *testing.T) {
	m := made{&snapshot.Snapshot{}}
	s := m.hold(snapshot.Labels{Kind: event.KindDevice.String(), Owner: "pytorch"}, 1, mib, main)
	v := Find(m.Snapshot, m.Snapshot)
	if got, want := v.lacking(), fmt.Sprintf("0 of %d causes were looked for. To look for the others, trace with --tensors (10), with --holders 30s (12), as root (6)", len(Rules)); got != want || len(v.lacks) != len(Rules) {
		t.Errorf("%s, want %s: %+v", got, want, v)
	}
	s.Owner = "jax" // it has no tensors to trace
	if got, want := Find(m.Snapshot, m.Snapshot).lacking(), "0 of 14 causes were looked for. To look for the others, trace with --holders 30s (8), as root (6)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	full := training()
	full.steps(20, 1)
	full.heap()
	m.Snapshot.Meta.StackMode = snapshot.ByPyTorch
	if got, want := Find(m.Snapshot, m.Snapshot).lacking(), "0 of 14 causes were looked for. PyTorch's snapshots cannot show the others (gpumemtrace check FILE --no-finding all lists them): trace the program with sudo gpumemtrace --tensors --holders 30s"; got != want {
		t.Errorf("of a snapshot: %q", got)
	}
	if v := Find(full.Snapshot, full.Snapshot); len(v.lacks) != 0 || v.lacking() != "" || len(v.Findings) != 0 {
		t.Errorf("%+v", v)
	}
}

// A tensor at the address of one that was freed before the heap was read says nothing of an old graph.
func TestOldGraphNeedsItsTensor(t *testing.T) {
	peak, end := training(), training()
	for _, m := range []made{peak, end} {
		m.steps(20, 0)
	}
	peak.Live = append(peak.Live, snapshot.Allocation{Address: 1000, Size: 32 * mib, Time: peak.Meta.Start.Add(33 * time.Second)})
	reading := storages(1, "loss.grad_fn", 32*mib, func(s *holder.Storage) { s.Role = holder.Activation })
	end.heap(reading...)
	if got := Find(peak.Snapshot, end.Snapshot).Of("old-graph"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	peak.heap(reading...)
	if got := Find(peak.Snapshot, end.Snapshot).Of("old-graph"); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

// What one object keeps is told once, by the rule that explains it best.
func TestOnce(t *testing.T) {
	growth := func(path string) Finding {
		return Finding{Rule: "growth", Bytes: 80, object: object{7, path}, each: 4 * mib, line: "train.py:9"}
	}
	graphs := Finding{Rule: "collected-graphs", Bytes: 70, Says: "Graphs.", object: object{7, "monitor.losses"}}
	gathered := Finding{Rule: "gathered", Bytes: 90, object: object{7, "monitor.losses[*]"}}
	for _, c := range []struct {
		all  []Finding
		want string
	}{
		{[]Finding{growth("monitor.losses[*].grad_fn (graph of 9 nodes)"), graphs}, "collected-graphs Graphs. Each training step adds 4.00 MiB, made at train.py:9."},
		{[]Finding{gathered, growth("monitor.losses[3]")}, "growth "},
		{[]Finding{growth("monitor.losses2"), graphs}, "growth , collected-graphs Graphs."},
		{[]Finding{growth(""), graphs}, "growth , collected-graphs Graphs."},
		{[]Finding{{Rule: "growth", object: object{8, "monitor.losses"}}, graphs}, "growth , collected-graphs Graphs."},
		{[]Finding{graphs, {Rule: "old-graph", object: object{7, "monitor.losses[*]"}}}, "collected-graphs Graphs."},
	} {
		var got []string
		for _, f := range once(c.all) {
			got = append(got, f.Rule+" "+f.Says)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// The largest finding is the first.
func TestOrder(t *testing.T) {
	m := training()
	m.tensors(stacks.Activation, "aten::to", 1, 512*mib, native("at::_ops::to_dtype::call", 9), main)
	m.tensors(stacks.Workspace, "aten::addmm", 16, 600*mib, main)
	v := Find(m.Snapshot, m.Snapshot)
	if !slices.IsSortedFunc(v.Findings, func(a, b Finding) int { return int(b.Bytes - a.Bytes) }) || len(v.Findings) != 2 {
		t.Errorf("%+v", v.Findings)
	}
}

func TestAccumulated(t *testing.T) {
	for _, rule := range accumulating {
		if !slices.Contains(Names(), rule) {
			t.Errorf("there is no rule %q", rule)
		}
	}
	v := Verdict{Findings: []Finding{{Rule: "workers"}, {Rule: "growth"}}}
	if got := v.Accumulated().Findings; len(got) != 1 || got[0].Rule != "growth" {
		t.Errorf("%+v", got)
	}
}
