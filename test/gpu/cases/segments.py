"""Beside PyTorch's own snapshot: how its segments are divided."""
import glob
import os
import shutil
import time

from case import TENSORS, case, python, traced


def ours(allocator):
    """An allocator of JSON's, as the program says how its segments are divided."""
    return {x["class"]: {k: n for k, n in x.items() if k not in ("class", "expandable", "small_pool")} for x in allocator["segments"]}


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
                r.equal(f"{name}: as PyTorch's snapshot has them", ours(allocators[0]), v["divided"])
                r.equal(f"{name}: bytes not seen", (allocators[0]["unseen_bytes"], allocators[0]["outside_bytes"]), (0, 0))
                t.go()
            v = t.program.expect("asked")
            if not backend:  # expandable segments map other pages instead
                r.equal("the program handled it", v["got"], "OutOfMemoryError")
                deadline = time.time() + 10
                while not (pages := glob.glob(os.path.join(place, "*.txt"))) and time.time() < deadline:
                    time.sleep(0.05)
                text = open(pages[0]).read() if pages else ""
                r.check("it would have fitted", "It would have fitted" in text and "one_more" in text, text)
                r.check("what would help", "expandable_segments:True" in text)
            t.finish()
