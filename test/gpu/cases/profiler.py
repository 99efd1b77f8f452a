"""Beside PyTorch's own profiler: what tensors are for, and which operators ask for them."""
import csv
import io
import subprocess

from case import TENSORS, case, python, traced
from harness import TOOL


def agreement(ours, theirs):
    """The share of bytes that both have under the same name, and where they differ by more than a thousandth.

    Bytes that PyTorch has no name for are left out."""
    ours, theirs = ({k: n for k, n in x.items() if k != "unknown"} for x in (ours, theirs))
    whole = sum(theirs.values())
    names = sorted(ours.keys() | theirs.keys(), key=lambda k: -max(ours.get(k, 0), theirs.get(k, 0)))
    same = sum(min(ours.get(k, 0), theirs.get(k, 0)) for k in names)
    differ = {k: (ours.get(k, 0), theirs.get(k, 0)) for k in names if abs(ours.get(k, 0) - theirs.get(k, 0)) > whole / 1000}
    return same / whole if whole else 0, differ


def by_operator(recording, at):
    """Bytes allocated until a moment of a recording, by operator: its own, and with what is inside."""
    text = subprocess.run([TOOL, "report", recording, "--at", at, "--by", "operator,kind", "--csv"],
                          check=True, capture_output=True, text=True).stdout
    own, total = {}, {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["kind"] == "tensor":
            name = "" if row["operator"].startswith("[") else row["operator"]
            own[name] = own.get(name, 0) + int(row["alloc_bytes"])
            total[name] = total.get(name, 0) + int(row["total_alloc_bytes"])
    return own, total


def at_peak(recording):
    """What a report shows of a recording's peak: its page, and the bytes in tensors then."""
    page, text = (subprocess.run([TOOL, "report", recording, *more], check=True, capture_output=True, text=True).stdout
                  for more in ((), ("--by", "kind", "--csv")))
    return page, sum(int(row["inuse_bytes"]) for row in csv.DictReader(io.StringIO(text)) if row["kind"] == "tensor")


def less(a, b):
    return {k: n for k in a if (n := a[k] - b.get(k, 0))}


@case("torch", "transformers", "torchvision")
def profiler(r):
    for model in "gpt2", "resnet", "vit":
        with traced(r, python("torch_profiled.py", model), flags=TENSORS, suffix="-" + model) as t:
            ours, at = {}, {}
            for name in "begin", "forward", "backward", "end":
                v, s = t.at(name)
                at[name] = f"{s.data['meta']['duration_ns']}ns"
                ours[name] = {}
                for x in s.samples:
                    if x["labels"]["kind"] == "tensor":
                        label = x["labels"].get("category", "unknown")
                        ours[name][label] = ours[name].get(label, 0) + x["values"]["inuse_bytes"]
                r.equal(f"{model}, {name}: tensors", sum(ours[name].values()), v["allocated"])
                t.go()
            said, _ = t.at("said")
            t.finish()
        page, tensors = at_peak(t.tracer.recording)
        r.note(f"{model}: its first screen", page)
        r.check(f"{model}: it is of the peak", "At the peak (--at peak), " in page.splitlines()[1], page)
        r.check(f"{model}: tensors at the peak, within 1 % of torch.cuda.max_memory_allocated", abs(tensors - said["most"]) <= 0.01 * said["most"],
                (tensors, said["most"]))
        for name, theirs in said["categories"].items():
            share, differ = agreement(ours[name], theirs)
            # It has no category for what GPT-2 computes of integers.
            r.note(f"{model}, {name}: PyTorch has a category for", f"{100 * (1 - theirs.get('unknown', 0) / sum(theirs.values())):.2f} %")
            r.note(f"{model}, {name}: ours", ours[name])
            r.note(f"{model}, {name}: PyTorch's", theirs)
            r.check(f"{model}, {name}: at least 95 % of those are of the same", share >= 0.95, f"{100 * share:.2f} %, differ: {differ}")
        for what, i, theirs in ("its own", 0, said["own"]), ("with what is inside", 1, said["total"]):
            mine = less(by_operator(t.tracer.recording, at["end"])[i], by_operator(t.tracer.recording, at["begin"])[i])
            if i:  # each byte is under each operator around it
                mine.pop("", None)
            share, differ = agreement(mine, theirs)
            r.note(f"{model}: operators, bytes in all, {what}", (len(mine), sum(mine.values()), sum(theirs.values())))
            r.check(f"{model}: at least 98 % of bytes are of the same operators, {what}", share >= 0.98, f"{100 * share:.2f} %, differ: {differ}")
