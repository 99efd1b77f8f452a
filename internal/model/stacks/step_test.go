package stacks

import "testing"

func TestStep(t *testing.T) {
	const (
		adam    = "Adam.step # " + site + "torch/optim/adam.py"
		wrapper = "Optimizer.profile_hook_step.<locals>.wrapper # " + site + "torch/optim/optimizer.py"
		loop    = "train # /home/u/train.py"
		module  = "<module> # /home/u/train.py"
	)
	call := func(list ...string) uint64 {
		t.Helper()
		got, ok := Step(frames(list...))
		if !ok || got.Clips {
			t.Errorf("%q: %+v, known %t", list, got, ok)
		}
		return got.ID
	}
	in := call("x @ /t.so", "at::empty @ /t.so", "_foreach_add # "+site+"torch/optim/adam.py", adam, wrapper, loop, module, "_start @ "+py)
	if in == 0 {
		t.Error("an optimizer's step is none")
	}
	for name, stack := range map[string][]string{
		"without native frames":     {adam, wrapper, loop, module},
		"elsewhere in the step":     {"? @ /t.so", "SGD.step # " + site + "torch/optim/sgd.py", wrapper, "<interpreter trampoline> # <shim>", loop, module},
		"of a class of one's own":   {"Lion.step # /home/u/lion.py", wrapper, loop, module},
		"by the name before 3.11":   {"step # " + site + "torch/optim/adam.py", "wrapper # " + site + "torch/optim/optimizer.py", loop, module},
		"an optimizer inside of it": {adam, wrapper, "ZeroRedundancyOptimizer.step # " + site + "torch/distributed/optim/zero.py", wrapper, loop, module},
		"called from another place": {adam, wrapper, loop, "again # /home/u/train.py", module},
		"by a scaler":               {adam, wrapper, "GradScaler.step # " + site + "torch/amp/grad_scaler.py", loop, module},
		"by a library":              {adam, wrapper, "AcceleratedOptimizer.step # " + site + "accelerate/optimizer.py", loop, module},
		"its closure":               {"forward # /home/u/net.py", "closure # /home/u/train.py", "LBFGS.step # " + site + "torch/optim/lbfgs.py", wrapper, loop, module},
	} {
		if got := call(stack...); got != in {
			t.Errorf("%s: call %d, want %d", name, got, in)
		}
	}
	const clipped = "clip_grad_norm_ # " + site + "torch/nn/utils/clip_grad.py"
	for name, stack := range map[string][]string{
		"clipped":            {"x @ /t.so", "_get_total_norm # " + site + "torch/nn/utils/clip_grad.py", clipped, loop, module},
		"through accelerate": {clipped, "Accelerator.clip_grad_norm_ # " + site + "accelerate/accelerator.py", loop, module},
		"by FSDP":            {"FullyShardedDataParallel.clip_grad_norm_ # " + site + "torch/distributed/fsdp/fully_sharded_data_parallel.py", loop, module},
	} {
		if got, ok := Step(frames(stack...)); !ok || got != (Call{in, true}) {
			t.Errorf("%s: %+v, want clipping at %d", name, got, in)
		}
	}
	other := frames(adam, wrapper, loop, module)
	other[2].Lines[0].Line = 7
	if got, ok := Step(other); !ok || got.ID == in || got.ID == 0 {
		t.Error("called at another line it is the same call")
	}
	if got := call(adam, wrapper, "update # /home/u/gan.py", loop, module); got == in || got == 0 {
		t.Error("called by another function it is the same call")
	}
	if got := call(adam, wrapper, "fit # "+site+"trainer/fit.py", "<module> # "+site+"trainer/__main__.py"); got == 0 {
		t.Error("called by installed packages alone it is none")
	}
	for name, stack := range map[string][]string{
		"forward":         {"forward # /home/u/net.py", loop, module},
		"a thread's":      {"load # /home/u/data.py", "Thread._bootstrap # /usr/lib/python3.12/threading.py"},
		"one's own step":  {"Trainer.step # /home/u/trainer.py", loop, module},
		"a norm alone":    {"get_total_norm # " + site + "torch/nn/utils/clip_grad.py", loop, module},
		"zero_grad":       {"Optimizer.zero_grad # " + site + "torch/optim/optimizer.py", loop, module},
		"a scheduler":     {"LRScheduler.step # " + site + "torch/optim/lr_scheduler.py", loop, module},
		"an average":      {"step # " + site + "torch/optim/swa_utils.py", loop, module},
		"another library": {"step # " + site + "other/optim/adam.py", loop, module},
		"a scaler's":      {"GradScaler.step # " + site + "torch/amp/grad_scaler.py", loop, module},
	} {
		if got := call(stack...); got != 0 {
			t.Errorf("%s: in a step", name)
		}
	}
	for name, stack := range map[string][]string{
		"nothing":            nil,
		"no Python":          {"x @ /t.so", "at::empty @ /t.so", "main @ /bin/app"},
		"cut in the step":    {adam, wrapper},
		"cut outside of one": {"forward # /home/u/net.py", loop},
		"cut between":        {"f # a.py", "[truncated: 9 frames]", loop, module},
	} {
		if _, ok := Step(frames(stack...)); ok {
			t.Errorf("%s: known", name)
		}
	}
}
