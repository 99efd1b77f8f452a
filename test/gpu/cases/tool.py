"""gpumemtrace as it is used: on a command, late, on everyone, for a profile."""
import os
import shutil
import signal
import subprocess
import time

import accounts
import profile_file
from case import TENSORS, Traced, case, python
from cases.driver import every_kind
from harness import DEVICE, DRIVER, HERE, PATIENCE, TOOL, Program, Tracer, held, nvcc, wait_for


@case()
def command(r):
    """-- CMD: held until the probes are on, its exit code is ours."""
    profile = r.path(".pb.gz")
    done = subprocess.run([TOOL, "-o", profile, "--force", "--", every_kind(r)], input="\n\n\n\n", text=True, capture_output=True)
    r.equal("exit code", done.returncode, 7)
    r.check("profile", os.path.exists(profile), done.stderr.splitlines()[-1:])


@case("torch")
def late(r):
    """Attached in the middle: what was there before shrinks as it is freed."""
    for name, backend in ("native", ""), ("async", "backend:cudaMallocAsync"):
        p = Program(python("torch_train.py", "train"), {"PYTORCH_CUDA_ALLOC_CONF": backend})
        t = None
        try:
            p.expect("ready")
            p.go()
            v = p.expect("trained")
            t = Traced(r, p, Tracer(p.pid, r.path("-" + name)), late=True)
            def old(s):  # all that was there before, whatever it is for
                return sum(s.lines(p.pid, 0).get(x, 0) for x in (accounts.BEFORE, "[tensors from before attach]", "[cached, in segments from before attach]"))
            before = [old(t.check(v))]
            r.equal("all of it is from before", before[0], sum(v["processes"][0]["nvml"].values()))
            for point in "oom", "freed":
                t.go()
                v, s = t.at(point)
                before.append(old(s))
            r.check(f"{name}: {accounts.BEFORE} at attach, after running out of memory, after freeing",
                    before[0] >= before[1] > before[2] >= 0, before)
            r.equal("PyTorch's bytes after freeing", s.device(owner="pytorch"), 0)
            r.check("frees of what was there before", s.process(p.pid)["unmatched_frees"] > 0, s.process(p.pid)["unmatched_frees"])
            t.finish()
        finally:
            p.kill()
            if t:
                t.tracer.process.kill()


@case("torch")
def tensors_late(r):
    """Attached in the middle: what PyTorch's allocator says splits what was there before."""
    for name, backend in ("native", ""), ("expandable", "expandable_segments:True"):
        p = Program(python("torch_train.py", "blocks"), {"PYTORCH_CUDA_ALLOC_CONF": backend})
        t = None
        try:
            p.expect("ready")
            p.go()
            p.expect("trained")
            t = Traced(r, p, Tracer(p.pid, r.path("-" + name), *TENSORS), late=True, flags=TENSORS)
            t.go()
            p.expect("block")
            t.go()
            v, s = t.at("time")
            lines = s.lines(p.pid, 0)
            r.note(f"{name}: lines", lines)
            tensors = sum(lines.get(x, 0) for x in ("tensors", "tensors in segments from before attach", "[tensors from before attach]"))
            r.equal(f"{name}: PyTorch's tensors", tensors, v["allocated"])
            cached = sum(lines.get(x, 0) for x in ("[cached, unused]", "[cached, in segments from before attach]"))
            r.equal(f"{name}: PyTorch's segments", tensors + cached, v["reserved"])
            t.go()
            p.expect("block")
            p.go("end")
            p.expect("oom")
            t.go()
            v, s = t.at("freed")
            lines = s.lines(p.pid, 0)
            r.equal(f"{name}: tensors after freeing", {x: n for x, n in lines.items() if "tensors" in x and n}, {})
            t.finish()
        finally:
            p.kill()
            if t:
                t.tracer.process.kill()


@case("torch", alone=True)
def everyone(r):
    """-a among short processes: it ends when it is told to, and what ended is not in use."""
    short = r.path("-short")
    nvcc(os.path.join(HERE, "programs", "short.cu"), short)
    p = Program(python("torch_train.py", "train"))
    t = None
    try:
        p.expect("ready")
        t = Traced(r, p, Tracer(None, r.path()))
        t.go()
        v = p.expect("trained")
        pids = []
        for mib in range(100, 900, 100):
            one = subprocess.Popen([short, str(mib)])
            pids.append(one.pid)
            r.check(f"a program of {mib} MiB", one.wait(PATIENCE) == 0)
        r.check("it still traces", t.tracer.process.poll() is None)
        s = t.check(v)
        r.equal("PyTorch's bytes", s.device(owner="pytorch", pid=p.pid), v["reserved"])
        r.equal("in use by those that ended", sum(s.sum(pid=x) for x in pids), 0)
        r.equal("allocated by them", [s.device("alloc_bytes", pid=x) >> 20 for x in pids], list(range(100, 900, 100)))
        r.equal("their peak", [s.device("peak_bytes", pid=x) >> 20 for x in pids], list(range(100, 900, 100)))
        complete, total = s.complete()
        r.note("stacks that reach their thread's start, by calls", f"{complete} of {total}")
        copied = r.path("-copied")  # as a container has it
        os.makedirs(copied, exist_ok=True)
        with open("/proc/%d/maps" % p.pid) as f:
            library = next(line.split()[-1] for line in f if "/libcuda.so" in line)
        shutil.copy(library, os.path.join(copied, "libcuda.so.1"))
        paths = copied + ":" + os.environ.get("LD_LIBRARY_PATH", "")
        one = subprocess.Popen([short, "900"], env={**os.environ, "LD_LIBRARY_PATH": paths})
        r.check("a program with a copy of libcuda", one.wait(PATIENCE) == 0)
        s = t.tracer.snapshot()  # what that one did before its probes were on is not in its total
        r.equal("its bytes, though nobody had probed that file", s.device("alloc_bytes", pid=one.pid) >> 20, 900)
        r.equal("and it is told", s.loss().get("libraries_probed_late"), 1)
        r.note("for how long it had no probes", [x for x in s.data["notes"] if "mapped up to" in x])
        r.equal("shown once", {x["pid"] for x in t.tracer.snapshot().data["processes"]} & set(pids), set())
        r.note("loss", s.loss())
        t.tracer.stop()
    finally:
        p.kill()
        if t:
            t.tracer.process.kill()


@case("torch")
def pprof(r):
    """The main job as a user does it: -p PID, Ctrl-C, a profile, whose bytes in use are NVML's."""
    p = Program(python("torch_train.py", "train"))
    profile, ready, t = r.path(".pb.gz"), r.path("-ready"), None
    try:
        p.expect("ready")
        t = subprocess.Popen([TOOL, "-p", str(p.pid), "-o", profile, "--force", "--ready-file", ready],
                             stderr=subprocess.PIPE, text=True)
        wait_for(ready, t)
        p.go()
        v = p.expect("trained")
        time.sleep(0.2)
        t.send_signal(signal.SIGINT)
        print(t.communicate(timeout=60)[1])
        r.equal("exit code", t.returncode, 0)
        kinds = profile_file.sums(profile, "inuse_space", "kind")
        r.note("inuse_space by kind", kinds)
        r.equal("inuse_space on the GPU, and NVML's figure", sum(n for k, n in kinds.items() if k in DEVICE + DRIVER),
                sum(held(p.pid)["nvml"].values()))
        r.equal("of it PyTorch's", profile_file.sums(profile, "inuse_space", "owner", kind=DEVICE).get("pytorch"), v["reserved"])
        text = subprocess.run([TOOL, "report", profile], text=True, capture_output=True)
        print(text.stdout)
        r.equal("report", text.returncode, 0)
    finally:
        p.kill()
        if t and t.poll() is None:
            t.kill()
