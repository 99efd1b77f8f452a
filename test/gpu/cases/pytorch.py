"""PyTorch's allocators, CUDA graphs, torch.compile, running out of memory, Hugging Face."""
import os
import shutil
import statistics
import time

from case import NATIVE, TENSORS, case, python, traced, whole
from harness import Failed


def train(r, backend, kind):
    with traced(r, python("torch_train.py", "train"), {"PYTORCH_CUDA_ALLOC_CONF": backend},
                NATIVE + ("--verify-stacks", "7") + (TENSORS if kind != "async" else ())) as t:
        v, s = t.at("trained")
        held = s.device(owner="pytorch")
        r.equal(f"PyTorch's bytes ({kind})", held, v["allocated"] if kind == "async" else v["reserved"])
        kinds = (kind,) if kind == "async" else ("tensor", "cached")
        r.equal("all of PyTorch's are of its kind", s.device(owner="pytorch", kind=kinds), held)
        r.note("by owner", s.by("owner"))
        depth = [len(x["stack"]) for x in s.samples]
        r.note("frames a stack", {"median": statistics.median(depth), "max": max(depth)})
        ours = s.device("alloc_bytes", lambda x: any(f.get("file", "").endswith("torch_train.py") for f in s.frames(x)))
        r.note("bytes under a line of the script", f"{ours} of {s.device('alloc_bytes')}")
        r.note("events", s.data["meta"]["events"])
        t.go()
        v, s = t.at("oom")
        r.equal("400 GiB fails in PyTorch", v["error"], "OutOfMemoryError")
        r.check("and is seen failing", s.process(t.pid)["out_of_memory"] > 0, s.process(t.pid)["out_of_memory"])
        if kind != "async":
            r.equal("PyTorch's bytes after it", s.device(owner="pytorch"), v["reserved"])
        r.note("events", s.data["meta"]["events"])
        t.go()
        v, s = t.at("freed")
        r.equal("PyTorch's bytes after freeing", s.device(owner="pytorch"), v["allocated" if kind == "async" else "reserved"])
        r.note("by owner, freed", s.by("owner"))
        r.note("resident memory, highest", t.tracer.rss("VmHWM"))
        s = t.finish()
        r.equal("in use in the final profile", s.device(owner="pytorch"), 0)
        r.note("stack mode", s.data["meta"]["stack_mode"])
        complete, total = s.complete()
        r.check("stacks that reach their thread's start, by calls", complete >= 0.999 * total, f"{complete} of {total}")
        whole, drivers = s.complete(driver=True)  # libcuda asks for some as soon as it is loaded, before it is analysed
        r.note("those of what the driver took for itself", f"{whole} of {drivers}")
        lost = s.loss()
        without = sum(lost.get(k, 0) for k in ("stacks_incomplete", "stacks_unknown_process", "stacks_fallback", "stacks_failed"))
        events = s.data["meta"]["events"]
        r.check("events without a complete stack", without <= events / 1000 + drivers - whole, f"{without} of {events}")
        r.equal("other loss", {k: n for k, n in lost.items() if not k.startswith(("unnamed", "symbolize", "stacks_"))}, {})
        r.note("names lost", lost)
        r.note("notes", s.data["notes"])


@case("torch")
def torch_native(r):
    train(r, "", "device")


@case("torch")
def torch_expandable(r):
    train(r, "expandable_segments:True", "vmm")


@case("torch")
def torch_async(r):
    train(r, "backend:cudaMallocAsync", "async")


@case("torch")
def graphs(r):
    with traced(r, python("torch_graphs.py"), flags=TENSORS) as t:
        for name in "warm", "captured", "dropped":
            v, s = t.at(name)
            r.equal("PyTorch's bytes", s.device(owner="pytorch"), v["reserved"])
            if name != "dropped":
                t.go()
        t.finish()


@case("torch")
def graphs_async(r):
    """What is allocated under capture is the graph's."""
    with traced(r, python("torch_graphs.py"), {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}) as t:
        t.at("warm")
        t.go()
        v, s = t.at("captured")
        r.note("by kind", s.by("kind"))
        r.check("memory of the graph", s.sum(kind="graph") > 0, s.sum(kind="graph"))
        r.check("and none of it in use beside", s.loss().get("allocations_during_capture", 0) == 0, s.loss())
        t.go()
        t.at("dropped")
        t.finish()


@case("torch")
def compiled(r):
    """torch.compile: kernels made at run time, and Triton's launcher."""
    with traced(r, python("torch_compile.py"), flags=NATIVE + TENSORS) as t:
        for name in "eager", "compiled":
            v, s = t.at(name)
            r.equal("PyTorch's bytes", s.device(owner="pytorch"), v["reserved"])
            if name == "eager":
                t.go()
        whole(r, s)
        t.finish()


@case("torch", alone=True)
def out_of_memory(r):
    for backend in ("", "expandable_segments:True"):
        place = r.path("-reports-" + backend[:3])
        shutil.rmtree(place, ignore_errors=True)

        def page(n, after):
            end = time.time() + 10
            while len(found := sorted(x for x in os.listdir(place) if x.endswith(".txt"))) < n:
                if time.time() > end:
                    raise Failed(f"report {n} did not come: {found}")
                time.sleep(0.02)
            r.check(f"report {n} in time", time.time() - after < 1, f"{time.time() - after:.2f} s after the program went on")
            with open(os.path.join(place, found[n - 1])) as f:
                return f.read()

        with traced(r, python("torch_oom.py"), {"PYTORCH_CUDA_ALLOC_CONF": backend}, ("--oom-dir", place)) as t:
            v, at = t.program.expect("failed"), time.time()
            r.equal("the program handled it", v["error"], "OutOfMemoryError")
            text = page(1, at)
            r.check("names the function", "ask_too_much" in text and "400 GiB" in text, text.splitlines()[0])
            r.check("names who holds", "hoard" in text and "pytorch" in text)
            r.check("the driver refused it for good", "The driver refused" in text and ("did not get that many bytes" in text or "nothing of the GPU's" in text), text.splitlines()[1:3])
            print(text if not backend else "", flush=True)
            t.check(v)
            time.sleep(1.2)
            t.go()
            v, at = t.program.expect("retried"), time.time()
            if not backend:  # an expandable segment is used again as it is
                text = page(2, at)
                r.check("recovered by a retry", "It recovered" in text and "retry_after_freeing_the_cache" in text, text.splitlines()[2])
            t.check(v)
            time.sleep(1.2)
            t.go()
            v, at = t.program.expect("fraction"), time.time()
            text = page(2 if backend else 3, at)
            r.check("PyTorch's own limit", "exceed_the_fraction" in text and v["error"] == "OutOfMemoryError", text.splitlines()[0])
            said = text.splitlines()[1]
            r.check("and that the GPU had room", said.startswith("The program's own limit refused it: no call of the driver failed for it, and ") and said.endswith(" of the GPU was free."), said)
            t.check(v)
            t.finish()


@case("torch", "transformers")
def generate(r):
    with traced(r, python("hf_generate.py"), flags=NATIVE + TENSORS) as t:
        v, s = t.at("generated")
        r.equal("PyTorch's bytes", s.device(owner="pytorch"), v["reserved"])
        whole(r, s)
        r.note("loss", t.finish().loss())
