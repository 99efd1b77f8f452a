"""The file for PyTorch's memory viewer, beside what PyTorch's allocator lists itself."""
import os
import pickle
import subprocess
import sys

from case import TENSORS, case, python, traced
from harness import TOOL

MODES = {"native": "", "expandable": "expandable_segments:True", "split": "max_split_size_mb:64,garbage_collection_threshold:0.8"}
MOMENTS = "forward", "trained", "fragmented", "emptied"


def ranges(blocks, address):
    """(address, size, in use) of blocks that lie side by side from an address on; what is free side by side is one."""
    out = []
    for size, state in blocks:
        used = state == "active_allocated"  # what waits for another stream is handed out no more
        if out and not used and not out[-1][2]:
            out[-1] = (out[-1][0], out[-1][1] + size, False)
        else:
            out.append((address, size, used))
        address += size
    return out


@case("torch")
def viewer(r):
    for mode, conf in MODES.items():
        env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf, "PYTORCH_ALLOC_CONF": conf}
        said, at = {}, {}
        with traced(r, python("torch_snapshot.py"), env=env, flags=TENSORS, suffix="-" + mode) as t:
            for name in MOMENTS:
                said[name], s = t.at(name)
                at[name] = f"{s.data['meta']['duration_ns']}ns"
                if name != MOMENTS[-1]:
                    t.go()
            t.finish()
        for name in MOMENTS:
            path = r.path(f"-{mode}-{name}.pickle")
            subprocess.run([TOOL, "convert", t.tracer.recording, "--at", at[name], "-o", path, "-q", "--force"], check=True)
            with open(path, "rb") as f:
                ours = pickle.load(f)
            compare(r, f"{mode}, {name}", said[name], ours)
        tools(r, mode, path, ours)


def compare(r, what, v, ours):
    by_address = {g["address"]: g for g in ours["segments"]}
    theirs = v["segments"]
    r.check(f"{what}: PyTorch has segments", len(theirs) > 1, len(theirs))
    r.equal(f"{what}: segments that lack", [g["address"] for g in theirs if g["address"] not in by_address], [])
    differ = []
    for g in theirs:
        o = by_address.get(g["address"])
        if o is None:
            continue
        want = (g["total_size"], g["device"], g["segment_type"], g["expandable"], ranges(g["blocks"], g["address"]))
        got = (o["total_size"], o["device"], o["segment_type"], o["is_expandable"], ranges([(b["size"], b["state"]) for b in o["blocks"]], o["address"]))
        if got != want:
            differ.append((hex(g["address"]), [(a, b) for a, b in zip(got, want) if a != b]))
    r.equal(f"{what}: segments that differ, block by block", differ, [])
    mine = [by_address[g["address"]] for g in theirs if g["address"] in by_address]
    r.equal(f"{what}: bytes in tensors", sum(g["allocated_size"] for g in mine), v["allocated"])
    r.equal(f"{what}: bytes in segments", sum(g["total_size"] for g in mine), v["reserved"])
    outside = [g for g in ours["segments"] if g["address"] not in {g["address"] for g in theirs}]
    r.equal(f"{what}: segments beside PyTorch's that are PyTorch's", [hex(g["address"]) for g in outside if g["user_metadata"].get("owner") == "pytorch"], [])
    r.note(f"{what}: bytes beside PyTorch's allocator", {g["user_metadata"].get("owner"): g["total_size"] for g in outside})
    frames = [len(b["frames"]) for g in mine for b in g["blocks"] if b["state"] == "active_allocated"]
    r.check(f"{what}: every block has a stack", frames and min(frames) > 3, f"{len(frames)} blocks, of at least {min(frames, default=0)} frames")


def tools(r, mode, path, ours):
    """What is installed of PyTorch's reads the file."""
    trace = [e for entries in ours["device_traces"] for e in entries]
    r.check(f"{mode}: the trace has tensors and segments", {"alloc", "free_completed"} < {e["action"] for e in trace} and len(trace) > 1000, len(trace))
    for command in "stats", "trace", "segment_plot", "trace_plot":
        out = path + "." + command
        plot = ["-o", out] if command.endswith("plot") else []
        with open(out, "w") as f:
            done = subprocess.run([sys.executable, "-m", "torch.cuda._memory_viz", command, path, *plot], stdout=f if not plot else None, stderr=subprocess.PIPE, text=True)
        r.check(f"{mode}: _memory_viz {command}", done.returncode == 0 and os.path.getsize(out) > 100, done.stderr[-500:] or os.path.getsize(out))
