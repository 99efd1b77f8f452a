"""Every GPU case: a real program, gpumemtrace on it, and the numbers compared."""
import argparse
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback

from harness import HERE, PATIENCE, TOOL, Failed, Program, Tracer, nvcc, gpu_count, nvml_bytes, wait_for

CASES, OUT = {}, ""


def case(f):
    CASES[f.__name__] = f
    return f


class Report:
    """Checks of one case; a failed one does not stop it."""

    def __init__(self, name):
        self.name, self.failed, self.count = name, 0, 0

    def equal(self, what, got, want):
        self.check(what, got == want, f"{got} == {want}" if got == want else f"{got}, want {want}")

    def check(self, what, ok, detail=""):
        self.count += 1
        self.failed += not ok
        print(f"  {'ok  ' if ok else 'FAIL'} {what}: {detail}", flush=True)

    def note(self, what, value):
        print(f"       {what}: {value}", flush=True)


def python(name, *args):
    return [sys.executable, os.path.join(HERE, "programs", name), *args]


def attached(report, argv, env=None, flags=()):
    """A program waiting at its first checkpoint with gpumemtrace on it."""
    p = Program(argv, env)
    p.expect("ready")
    t = Tracer(p.pid, os.path.join(OUT, report.name), *flags)
    report.note("attach_seconds", round(t.attach_seconds, 3))
    p.go()
    return p, t


def whole(r, p, s, gpu=None):
    """The profile's total is what the driver says the process holds."""
    said = nvml_bytes(p, gpu)
    labels = {} if gpu is None else {"gpu": str(gpu)}
    total = s.sum(kind=("device", "array", "async", "vmm", "driver"), pid=p, **labels)
    tracked = s.device(pid=p, **labels)
    ok = said is not None and abs(total - said) <= max(said // 100, 4 << 20)
    r.check(f"profile's total is the driver's{'' if gpu is None else f', GPU {gpu}'}", ok,
            f"{total}, driver {said}, tracked {tracked}")
    for a in s.data["accounts"]:
        if a["pid"] == p and gpu in (None, int(a["gpu"])):
            r.note(f"GPU {a['gpu']}", {x["name"]: x["bytes"] for x in a["lines"]})


def torch_case(r, backend, kind):
    p, t = attached(r, python("torch_train.py", "train"), {"PYTORCH_CUDA_ALLOC_CONF": backend},
                    ("--native", "all", "--verify-stacks", "7"))
    try:
        v, s = p.expect("trained"), t.snapshot()
        pytorch = s.device(owner="pytorch")
        ours = v["allocated"] if kind == "async" else v["reserved"]
        r.equal(f"PyTorch's bytes ({kind})", pytorch, ours)
        r.equal("all of PyTorch's are of its kind", s.device(owner="pytorch", kind=kind), pytorch)
        r.note("by owner", s.by("owner"))
        whole(r, p.pid, s)
        depth = [len(x["stack"]) for x in s.samples]
        r.note("frames a stack", {"median": statistics.median(depth), "max": max(depth)})
        ours_py = s.device(value="alloc_bytes", where=lambda x: any(f.get("file", "").endswith("torch_train.py") for f in s.frames(x)))
        r.note("bytes under a line of the script", f"{ours_py} of {s.device(value='alloc_bytes')}")
        r.note("events", s.data["meta"]["events"])
        p.go()
        v, s = p.expect("oom"), t.snapshot()
        r.equal("400 GiB fails in PyTorch", v["error"], "OutOfMemoryError")
        r.check("and is seen failing", s.process(p.pid)["out_of_memory"] > 0, s.process(p.pid)["out_of_memory"])
        if kind != "async":
            r.equal("PyTorch's bytes after it", s.device(owner="pytorch"), v["reserved"])
        r.note("events", s.data["meta"]["events"])
        p.go()
        v, s = p.expect("freed"), t.snapshot()
        r.equal("PyTorch's bytes after freeing", s.device(owner="pytorch"), v["allocated" if kind == "async" else "reserved"])
        r.note("by owner, freed", s.by("owner"))
        r.note("resident memory, highest", t.rss("VmHWM"))
        p.go()
        r.equal("the program's exit code", p.wait(), 0)
        s = t.finish()
        r.equal("in use in the final profile", s.device(owner="pytorch"), 0)
        r.note("stack mode", s.data["meta"]["stack_mode"])
        complete, total = s.complete()
        r.check("stacks that reach their thread's start, by calls", complete >= 0.999 * total, f"{complete} of {total}")
        lost = s.loss()
        without = sum(lost.get(k, 0) for k in ("stacks_incomplete", "stacks_unknown_process", "stacks_fallback", "stacks_failed"))
        events = s.data["meta"]["events"]
        r.check("events without a complete stack", without <= events / 1000, f"{without} of {events}")
        r.equal("other loss", {k: n for k, n in lost.items() if not k.startswith(("unnamed", "symbolize", "stacks_"))}, {})
        r.note("names lost", s.loss())
        r.note("notes", s.data["notes"])
    finally:
        p.kill()
        t.process.kill()


@case
def torch_native(r):
    torch_case(r, "", "device")


@case
def torch_expandable(r):
    torch_case(r, "expandable_segments:True", "vmm")


@case
def torch_async(r):
    torch_case(r, "backend:cudaMallocAsync", "async")


@case
def jax(r):
    p, t = attached(r, python("jax_train.py"), {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    try:
        v, s = p.expect("trained"), t.snapshot()
        r.note("JAX says", v["stats"])
        r.note("by owner", s.by("owner"))
        r.equal("JAX's pool", s.device(owner="jax"), v["stats"].get("pool_bytes"))
        whole(r, p.pid, s)
        p.go()
        p.wait()
        t.finish()
    finally:
        p.kill()
        t.process.kill()


@case
def cupy(r):
    p, t = attached(r, python("cupy_pool.py"))
    try:
        v, s = p.expect("computed"), t.snapshot()
        r.note("by owner", s.by("owner"))
        r.equal("CuPy's pool", s.device(owner="cupy"), v["pool"])
        whole(r, p.pid, s)
        p.go()
        v, s = p.expect("freed"), t.snapshot()
        r.equal("CuPy's pool after freeing", s.device(owner="cupy"), v["pool"])
        r.note("by owner, freed", s.by("owner"))
        p.go()
        p.wait()
        t.finish()
    finally:
        p.kill()
        t.process.kill()


@case
def static_cpp(r):
    binary = os.path.join(OUT, "every_kind")
    nvcc(os.path.join(HERE, "programs", "every_kind.cu"), binary)
    for api in ("driver", "both", "runtime"):
        p = Program([binary])
        p.expect("ready")
        reports = os.path.join(OUT, r.name + "-oom-" + api)
        shutil.rmtree(reports, ignore_errors=True)
        t = Tracer(p.pid, os.path.join(OUT, r.name + "-" + api), "--api", api, "--oom-dir", reports)
        try:
            p.go()
            v, s = p.expect("held"), t.snapshot()
            vmm = () if api == "runtime" else ("vmm",)
            for kind in ("device", "managed", "async", "host", "host_registered", "array", *vmm):
                r.equal(f"--api {api}: {kind}", s.sum(kind=kind), v[kind])
            if api == "driver":
                whole(r, p.pid, s)
            r.equal(f"--api {api}: out of memory", s.process(p.pid)["out_of_memory"], 1)
            if api != "driver":
                names = {x["labels"].get("runtime" if api == "both" else "api") for x in s.samples}
                r.check(f"--api {api}: names the runtime calls", {"cudaMalloc", "cudaMallocPitch"} <= names, names)
            r.equal("sizeof(CUarrayMapInfo)", v["map_info"], 96)
            p.go()
            p.expect("freed")
            time.sleep(1)
            pages = [open(os.path.join(reports, x)).read() for x in os.listdir(reports) if x.endswith(".txt")]
            r.check(f"--api {api}: out-of-memory report", len(pages) == 1 and "fail" in pages[0] and "32.0 TiB" in pages[0], [x.splitlines()[0] for x in pages])
            s = t.snapshot()
            r.equal(f"--api {api}: all freed", s.sum(where=lambda x: x["labels"]["kind"] != "driver"), 0)
            p.go()
            r.equal("the program's exit code", p.wait(), 7)
            s = t.finish()
            r.equal(f"--api {api}: loss", {k: n for k, n in s.loss().items() if not k.startswith(("unnamed", "symbolize"))}, {})
        finally:
            p.kill()
            t.process.kill()
    main = [x for x in s.samples if any(f["function"] == "take_linear()" or f["function"] == "take_linear" for f in s.frames(x))]
    r.check("the program's functions are named", bool(main), [f["function"] for x in s.samples[:1] for f in s.frames(x)])


@case
def command(r):
    """-- CMD: held until the probes are on, its exit code is ours."""
    binary = os.path.join(OUT, "every_kind")
    if not os.path.exists(binary):
        nvcc(os.path.join(HERE, "programs", "every_kind.cu"), binary)
    profile = os.path.join(OUT, "command.pb.gz")
    done = subprocess.run([TOOL, "-o", profile, "--force", "--", binary], input="\n\n\n\n", text=True, capture_output=True)
    r.equal("exit code", done.returncode, 7)
    r.check("profile", os.path.exists(profile), done.stderr.splitlines()[-1:])


@case
def graphs(r):
    p, t = attached(r, python("torch_graphs.py"))
    try:
        v, s = p.expect("captured"), t.snapshot()
        r.equal("PyTorch's bytes", s.device(owner="pytorch"), v["reserved"])
        whole(r, p.pid, s)
        p.go()
        p.wait()
        t.finish()
    finally:
        p.kill()
        t.process.kill()


@case
def graphs_async(r):
    """What is allocated under capture is the graph's."""
    p, t = attached(r, python("torch_graphs.py"), {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    try:
        p.expect("captured")
        s = t.snapshot()
        r.note("by kind", s.by("kind"))
        r.check("memory of the graph", s.sum(kind="graph") > 0, s.sum(kind="graph"))
        r.check("and none of it in use beside", s.loss().get("allocations_during_capture", 0) == 0, s.loss())
        whole(r, p.pid, s)
        p.go()
        p.wait()
        t.finish()
    finally:
        p.kill()
        t.process.kill()


@case
def late(r):
    """Attached in the middle: what was there before shrinks as it is freed."""
    p = Program(python("torch_train.py", "train"))
    p.expect("ready")
    p.go()
    p.expect("trained")
    t = Tracer(p.pid, os.path.join(OUT, r.name))
    try:
        whole(r, p.pid, t.snapshot())
        p.go()
        p.expect("oom")
        whole(r, p.pid, t.snapshot())
        p.go()
        v, s = p.expect("freed"), t.snapshot()
        whole(r, p.pid, s)
        r.equal("PyTorch's bytes after freeing", s.device(owner="pytorch"), 0)
        r.check("frees of what was there before", s.process(p.pid)["unmatched_frees"] > 0, s.process(p.pid)["unmatched_frees"])
        p.go()
        p.wait()
        t.finish()
    finally:
        p.kill()
        t.process.kill()


@case
def out_of_memory(r):
    for backend in ("", "expandable_segments:True"):
        place = os.path.join(OUT, r.name + "-reports-" + backend[:3])
        shutil.rmtree(place, ignore_errors=True)
        p, t = attached(r, python("torch_oom.py"), {"PYTORCH_CUDA_ALLOC_CONF": backend}, ("--oom-dir", place))

        def page(n, after):
            end = time.time() + 10
            while len(found := sorted(x for x in os.listdir(place) if x.endswith(".txt"))) < n:
                if time.time() > end:
                    raise Failed(f"report {n} did not come: {found}")
                time.sleep(0.02)
            r.check(f"report {n} in time", time.time() - after < 1, f"{time.time() - after:.2f} s after the program went on")
            return open(os.path.join(place, found[n - 1])).read()

        try:
            v, at = p.expect("failed"), time.time()
            r.equal("the program handled it", v["error"], "OutOfMemoryError")
            text = page(1, at)
            r.check("names the function", "ask_too_much" in text and "400 GiB" in text, text.splitlines()[0])
            r.check("names who holds", "hoard" in text and "pytorch" in text)
            r.check("was not recovered", "Not recovered" in text)
            print(text if not backend else "", flush=True)
            time.sleep(1.2)
            p.go()
            v, at = p.expect("retried"), time.time()
            if not backend:  # an expandable segment is used again as it is
                text = page(2, at)
                r.check("recovered by a retry", "Recovered" in text and "retry_after_freeing_the_cache" in text, text.splitlines()[2])
            time.sleep(1.2)
            p.go()
            v, at = p.expect("fraction"), time.time()
            text = page(2 if backend else 3, at)
            r.check("PyTorch's own limit", "exceed_the_fraction" in text and v["error"] == "OutOfMemoryError", text.splitlines()[0])
            p.go()
            r.equal("exit code", p.wait(), 0)
            t.finish()
        finally:
            p.kill()
            t.process.kill()


def processes(r, mode):
    p, t = attached(r, python("torch_processes.py", mode))
    try:
        v, s = p.expect("held"), t.snapshot()
        for w in v["workers"]:
            gpu = w["gpu"]
            r.equal("PyTorch's bytes", s.device(owner="pytorch", pid=w["pid"], gpu=str(gpu)), w["reserved"])
            whole(r, w["pid"], s, gpu)
            if mode == "nccl":
                r.check("NCCL's bytes", s.device(owner="nccl", pid=w["pid"]) > 0, s.device(owner="nccl", pid=w["pid"]))
        r.note("by owner", s.by("owner"))
        r.note("loss", s.loss())
        p.go()
        p.wait()
        t.finish()
    finally:
        p.kill()
        t.process.kill()


@case
def two_processes(r):
    processes(r, "share")


@case
def nccl(r):
    processes(r, "nccl")


@case
def two_gpus(r):
    p, t = attached(r, python("torch_two_gpus.py"))
    try:
        v, s = p.expect("held"), t.snapshot()
        for gpu in range(2):
            r.equal(f"PyTorch's bytes on GPU {gpu}", s.device(owner="pytorch", gpu=str(gpu)), v["reserved"][gpu])
            whole(r, p.pid, s, gpu)
        p.go()
        p.wait()
        t.finish()
    finally:
        p.kill()
        t.process.kill()


@case
def everyone(r):
    """-a among short processes: it ends when it is told to, and what ended is not in use."""
    short = os.path.join(OUT, "short")
    nvcc(os.path.join(HERE, "programs", "short.cu"), short)
    p = Program(python("torch_train.py", "train"))
    t = None
    try:
        p.expect("ready")
        t = Tracer(None, os.path.join(OUT, r.name))
        p.go()
        v = p.expect("trained")
        pids = []
        for mib in range(100, 900, 100):
            one = subprocess.Popen([short, str(mib)])
            pids.append(one.pid)
            r.check(f"a program of {mib} MiB", one.wait(PATIENCE) == 0)
        r.check("it still traces", t.process.poll() is None)
        s = t.snapshot()
        r.equal("PyTorch's bytes", s.device(owner="pytorch", pid=p.pid), v["reserved"])
        whole(r, p.pid, s)
        r.equal("in use by those that ended", sum(s.sum(pid=x) for x in pids), 0)
        r.equal("allocated by them", [s.device("alloc_bytes", pid=x) >> 20 for x in pids], list(range(100, 900, 100)))
        r.equal("their peak", [s.device("peak_bytes", pid=x) >> 20 for x in pids], list(range(100, 900, 100)))
        complete, total = s.complete()
        r.note("stacks that reach their thread's start, by calls", f"{complete} of {total}")
        copied = os.path.join(OUT, "copied")  # as a container has it
        os.makedirs(copied, exist_ok=True)
        with open("/proc/%d/maps" % p.pid) as f:
            library = next(line.split()[-1] for line in f if "/libcuda.so" in line)
        shutil.copy(library, os.path.join(copied, "libcuda.so.1"))
        one = subprocess.Popen([short, "900"], env={**os.environ, "LD_LIBRARY_PATH": copied + ":" + os.environ.get("LD_LIBRARY_PATH", "")})
        r.check("a program with a copy of libcuda", one.wait(PATIENCE) == 0)
        s = t.snapshot()
        r.equal("its bytes, though nobody had probed that file", s.device("alloc_bytes", pid=one.pid) >> 20, 900)
        r.equal("and it is told", s.loss().get("libraries_probed_late"), 1)
        r.note("for how long it had no probes", [x for x in s.data["notes"] if "mapped up to" in x])
        r.equal("shown once", {x["pid"] for x in t.snapshot().data["processes"]} & set(pids), set())
        r.note("loss", s.loss())
        t.stop()
    finally:
        p.kill()
        if t:
            t.process.kill()


@case
def launcher(r):
    """torchrun, whose workers run already: they are traced with it."""
    place = os.path.join(OUT, r.name + "-place")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    run = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2" if gpu_count() > 1 else "--nproc-per-node=1",
                            os.path.join(HERE, "programs", "hf_trainer.py"), place], stdout=subprocess.DEVNULL)
    ranks = range(2 if gpu_count() > 1 else 1)
    t = None

    def told(name):
        out = []
        for rank in ranks:
            path = os.path.join(place, f"{name}.{rank}")
            wait_for(path, run)
            with open(path) as f:
                out.append(json.load(f))
        return out

    try:
        told("ready")
        t = Tracer(run.pid, os.path.join(OUT, r.name))
        open(os.path.join(place, "go"), "w").close()
        trained = told("trained")
        time.sleep(1.2)
        s = t.snapshot()
        for w in trained:
            r.equal(f"PyTorch's bytes in worker {w['pid']}", s.device(owner="pytorch", pid=w["pid"]), w["reserved"])
            whole(r, w["pid"], s, w["gpu"])
        complete, total = s.complete()
        r.note("stacks that reach their thread's start, by calls", f"{complete} of {total}")
        r.note("target", s.data["meta"]["target"])
        r.check("the target names the children", "child process" in s.data["meta"]["target"])
        open(os.path.join(place, "end"), "w").close()
        r.equal("torchrun's exit code", run.wait(PATIENCE), 0)
        s = t.finish()
        r.equal("in the final profile", sorted(s.device(owner="pytorch", pid=w["pid"]) > 0 for w in trained), [True] * len(trained))
        r.note("loss", s.loss())
    finally:
        run.terminate()
        if t:
            t.process.kill()


@case
def generate(r):
    p, t = attached(r, python("hf_generate.py"))
    try:
        v, s = p.expect("generated"), t.snapshot()
        r.equal("PyTorch's bytes", s.device(owner="pytorch"), v["reserved"])
        whole(r, p.pid, s)
        complete, total = s.complete()
        r.note("stacks that reach their thread's start, by calls", f"{complete} of {total}")
        p.go()
        p.wait()
        r.note("loss", t.finish().loss())
    finally:
        p.kill()
        t.process.kill()


@case
def context_reset(r):
    p, t = attached(r, python("driver_calls.py", "reset"))
    try:
        p.expect("held")
        time.sleep(1.2)
        s = t.snapshot()
        r.equal("held", {k: v >> 20 for k, v in s.by("kind").items() if k != "driver"}, {"device": 64, "async": 16, "vmm": 32})
        whole(r, p.pid, s)
        p.go()
        p.expect("reset")
        time.sleep(4)
        said, s = nvml_bytes(p.pid), t.snapshot()
        r.equal("the driver lists the process", said, None)
        r.equal("what outlives the context", {k: v >> 20 for k, v in s.by("kind").items()}, {"async": 16, "vmm": 32})
        r.equal("accounts", s.data["accounts"], [])
        p.go()
        p.wait()
        t.finish()
    finally:
        p.kill()
        t.process.kill()


@case
def late_contexts(r):
    """Attached late: another context that comes and goes takes nothing of the first one along."""
    p, t = attached(r, python("driver_calls.py", "contexts"))
    try:
        p.expect("held")
        r.equal("held, MiB", t.snapshot().device() >> 20, 512)
        p.go()
        p.expect("destroyed")
        s = t.snapshot()
        r.equal("held after the other context's end, MiB", s.device() >> 20, 512)
        whole(r, p.pid, s)
        p.go()
        p.wait()
        t.finish()
    finally:
        p.kill()
        t.process.kill()


@case
def pprof(r):
    """The main job as a user does it: -p PID, Ctrl-C, a profile."""
    p = Program(python("torch_train.py", "train"))
    profile = os.path.join(OUT, "train.pb.gz")
    ready = os.path.join(OUT, "pprof-ready")
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
        text = subprocess.run([TOOL, "report", profile], text=True, capture_output=True)
        print(text.stdout)
        r.equal("report", text.returncode, 0)
    finally:
        p.kill()


def program_runs(pid):
    """(runs, nanoseconds) of each BPF program that pid holds, by id; needs kernel.bpf_stats_enabled."""
    out = {}
    for fd in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            with open(f"/proc/{pid}/fdinfo/{fd}") as f:
                fields = dict(line.split(":", 1) for line in f if ":" in line)
        except OSError:
            continue
        if "run_cnt" in fields:
            out[int(fields["prog_id"])] = (int(fields["run_cnt"]), int(fields["run_time_ns"]))
    return out


@case
def cost(r):
    """What the kernel's own statistics say a call costs, in a PyTorch job that asks the driver for every tensor."""
    switch = "/proc/sys/kernel/bpf_stats_enabled"
    with open(switch) as f:
        before = f.read()
    for flags in ((), ("--no-stack-memo",)):
        p, t = attached(r, python("torch_train.py", "blocks"), {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, flags)
        try:
            with open(switch, "w") as f:
                f.write("1")
            p.expect("trained")
            p.go()
            p.expect("block")
            p.go()
            p.expect("time")
            p.go()
            p.expect("block")
            a, s = program_runs(t.process.pid), t.snapshot()
            p.go()
            p.expect("time")
            b, s2 = program_runs(t.process.pid), t.snapshot()
            runs = sorted((b[i][0] - a[i][0], b[i][1] - a[i][1]) for i in a)
            (calls, entry), (_, exit_) = sorted(runs[-2:], key=lambda x: x[1])
            allocs = s2.sum("alloc_objects") - s.sum("alloc_objects")
            # A free takes no stack: 0.25 us of the return program (BenchmarkExit/no_stack).
            each = (exit_ - 250 * (calls - allocs)) / allocs
            depth = statistics.median(len(x["stack"]) for x in s2.samples)
            r.note("calls, of them allocations", (calls, allocs))
            r.note("ns an entry", round(entry / calls))
            r.note(f"ns a return of an allocation {' '.join(flags)}", round(each))
            r.note("stacks", s2.data["notes"])
            r.check("cost" + " ".join(flags), each < (20000 if flags else 2500), f"{each / 1000:.2f} us, median of the stacks' frames shown {depth}")
        finally:
            p.kill()
            t.process.kill()
            with open(switch, "w") as f:
                f.write(before)


@case
def attach(r):
    """How long until every call of a running PyTorch process is seen."""
    p = Program(python("torch_train.py", "blocks"))
    try:
        p.expect("ready")
        p.go()
        p.expect("trained")
        for mode, limit in (("unwind", 4), ("fp", 0.5)):
            times, resident = [], []
            for _ in range(5):
                t = Tracer(p.pid, os.path.join(OUT, r.name), "--stacks", mode, record=False)
                times.append(t.attach_seconds)
                time.sleep(1)
                resident.append(t.rss("VmRSS"))
                t.stop()
            r.check(f"--stacks {mode}", statistics.median(times) < limit, f"median {statistics.median(times):.2f} s of {[round(x, 2) for x in times]}")
            r.note("resident a second later, MiB", [x >> 20 for x in resident])
    finally:
        p.kill()


@case
def overhead(r):
    """A cached training loop, blocks with and without probes in turn."""
    p = Program(python("torch_train.py", "blocks"))
    try:
        p.expect("ready")
        p.go()
        p.expect("trained")
        p.go()
        times = {"off": [], "on": []}
        for i in range(12):
            p.expect("block")
            t = Tracer(p.pid, os.path.join(OUT, r.name), record=False) if i % 2 else None
            if t:
                r.note("attach_seconds", round(t.attach_seconds, 3))
            p.go()
            times["on" if t else "off"].append(p.expect("time")["median_ms"])
            if t:
                begin = time.perf_counter()
                t.stop()
                r.note("detach_and_write_seconds", round(time.perf_counter() - begin, 3))
            p.go()
        p.expect("block")
        p.go("end")
        ratios = [on / off for on, off in zip(times["on"], times["off"])]
        r.note("step ms without", [round(x, 3) for x in times["off"]])
        r.note("step ms with", [round(x, 3) for x in times["on"]])
        r.note("median ratio", round(statistics.median(ratios), 4))
        r.check("within two per cent", statistics.median(ratios) < 1.02, round(statistics.median(ratios), 4))
    finally:
        p.kill()


GPUS = {"nccl": 2, "two_gpus": 2}
NEEDS = {"everyone": "torch", "graphs_async": "torch", "launcher": "transformers", "generate": "transformers", "graphs": "torch", "late": "torch", "out_of_memory": "torch", "two_processes": "torch", "nccl": "torch", "two_gpus": "torch", "pprof": "torch", "attach": "torch", "cost": "torch",
         "torch_native": "torch", "torch_expandable": "torch", "torch_async": "torch", "overhead": "torch",
         "jax": "jax", "cupy": "cupy"}


def main():
    global OUT
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", default="/tmp/gpumemtrace-gpu")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    args = parser.parse_args()
    OUT = os.path.abspath(args.o)
    os.makedirs(OUT, exist_ok=True)
    results = {}
    for name in args.cases or CASES:
        print(f"{name}", flush=True)
        r, begin = Report(name), time.time()
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            results[name] = f"not run: no {NEEDS[name]} here"
            continue
        if GPUS.get(name, 1) > gpu_count():
            results[name] = f"not run: needs {GPUS[name]} GPUs"
            continue
        try:
            CASES[name](r)
        except (Failed, Exception) as e:  # one broken case must not hide the others
            traceback.print_exc()
            r.check("ran to its end", False, e)
            log = os.path.join(OUT, name, "stderr")
            if os.path.exists(log):
                print(open(log).read()[-3000:])
        results[name] = f"{'FAILED' if r.failed else 'passed'}: {r.count - r.failed} of {r.count} checks, {time.time() - begin:.0f} s"
    print()
    for name, result in results.items():
        print(f"{name:20} {result}")
    sys.exit(any("FAILED" in x for x in results.values()))


main()
