"""Beside PyTorch's own snapshot: how its segments are divided."""
import glob
import os
import shutil
import time

from case import TENSORS, case, python, traced

from .holders import read


def ours(segments):
    """Segments of JSON's, as the programs say how they are divided (divided.py)."""
    told = "private_pool", "class", "expandable", "small_pool"
    return {" ".join(filter(None, (x["private_pool"], x["class"]))): {k: n for k, n in x.items() if k not in told} for x in segments}


def from_outside(r, name, pid, divided):
    """The segments as the allocator's tables have them, without a trace."""
    allocators = read(pid, "--segments")[0]["allocators"]
    r.equal(f"{name}: as PyTorch's snapshot has them, from its tables", [ours(a["classes"]) for a in allocators], [divided])


def shared(divided):
    """What of it is of no private pool, and what is or may be."""
    sums = {}
    for name, x in divided.items():
        if " " in name:
            for k in "reserved_bytes", "allocated_bytes", "cached_bytes", "kept_bytes":
                sums[k] = sums.get(k, 0) + x[k]
    return {name: x for name, x in divided.items() if " " not in name}, sums


@case("torch")
def segments(r):
    for backend in "", "expandable_segments:True":
        place = r.path("-reports-" + backend[:3])
        shutil.rmtree(place, ignore_errors=True)
        with traced(r, python("torch_segments.py"), {"PYTORCH_CUDA_ALLOC_CONF": backend}, TENSORS + ("--oom-dir", place), suffix="-" + (backend[:10] or "native")) as t:
            for name in "whole", "pieces", "released", "emptied":
                v, s = t.at(name)
                allocators = s.data["allocators"]
                r.equal(f"{name}: allocators", len(allocators), 1)
                r.equal(f"{name}: as PyTorch's snapshot has them", ours(allocators[0]["segments"]), v["divided"])
                from_outside(r, name, t.program.pid, v["divided"])
                r.equal(f"{name}: bytes not seen", (allocators[0]["unseen_bytes"], allocators[0]["outside_bytes"]), (0, 0))
                t.go()
            v = t.program.expect("asked")
            if not backend:  # expandable segments map other pages instead
                r.equal("the program handled it", v["got"], "OutOfMemoryError")
                deadline = time.time() + 10
                while not (pages := glob.glob(os.path.join(place, "*.txt"))) and time.time() < deadline:
                    time.sleep(0.05)
                text = open(pages[0]).read() if pages else ""
                r.check("it would have fitted", "would have been enough, but none of" in text and "one_more" in text, text)
                r.check("what would help", "expandable_segments:True" in text)
            t.finish()


@case("torch")
def pools(r):
    """Memory pools, of which a plug-in allocator gets the segments of one, and those of CUDA graphs, beside the usual ones."""
    place = r.path("-library")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    with traced(r, python("torch_pools.py", os.path.join(place, "plugin.so")), flags=TENSORS) as t:
        for name in "held", "freed", "captured", "captured_backward", "dropped":
            v, s = t.at(name)
            r.equal(f"{name}: PyTorch's bytes", s.sum(kind=("tensor", "cached")), v["reserved"])
            allocators = s.data["allocators"]
            r.equal(f"{name}: allocators", len(allocators), 1)
            got = ours(allocators[0]["segments"])
            from_outside(r, name, t.program.pid, v["divided"])
            if name != "captured_backward":
                r.equal(f"{name}: as PyTorch's snapshot has them", got, v["divided"])
            else:
                # What another thread took may be told as unknown, never as of no pool.
                r.equal(f"{name}: of no pool, and of some", shared(got), shared(v["divided"]))
                r.note("not known of which pool", [x for name, x in got.items() if name.startswith("unknown")])
            if name != "dropped":
                t.go()
        t.finish()
