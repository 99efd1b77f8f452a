"""What other allocator settings would have changed, and what they did change."""
import glob
import json
import os
import shutil
import subprocess

from case import TENSORS, case, python, traced
from harness import TOOL


def run(*args):
    return subprocess.run([TOOL, *args], check=True, stdout=subprocess.PIPE, text=True).stdout


@case("torch")
def whatif_fragmented(r):
    """A request that failed for fragmentation: the report, and the page about the failure, say which setting would have
    served it. The program run under that setting is served, and reserves what was predicted."""
    predicted = None
    for setting in "", "expandable_segments:True":
        live = r.path("-live")  # the trace writes its own page there
        shutil.rmtree(live, ignore_errors=True)
        with traced(r, python("torch_fragmented.py"), {"PYTORCH_CUDA_ALLOC_CONF": setting}, TENSORS + ("--oom-dir", live), suffix="-" + (setting[:10] or "native")) as t:
            v, _ = t.at("asked")
            t.finish(code=3 if not setting else 0)
        recording = t.tracer.recording
        if setting:
            r.equal("served under the setting", v["failed"], False)
            r.equal("the predicted peak of reserved memory", predicted, v["peak_reserved"])
            continue
        r.equal("the request failed", v["failed"], True)
        p, = json.loads(run("whatif", recording, "--json"))["predictions"]
        r.equal("tensors at their address", p["same_address"], p["tensors"])
        rows = {x["setting"]: x for x in p["rows"]}
        r.equal("predicted: served", rows["expandable_segments:True"].get("served"), "yes")
        predicted = rows["expandable_segments:True"]["peak_reserved_bytes"]
        answer = "With expandable_segments:True the request of 500 MiB that failed would have been served"
        text = " ".join(run("report", recording).split())
        r.check("the report says so", answer in text, text)
        place = r.path("-reports")
        shutil.rmtree(place, ignore_errors=True)
        run("convert", recording, "--oom-dir", place, "--force", "-o", recording + ".pb.gz")
        pages = glob.glob(os.path.join(place, "*.txt"))
        text = " ".join(open(pages[0]).read().split()) if pages else ""
        r.check("the page about the failure says so", answer in text, text)
