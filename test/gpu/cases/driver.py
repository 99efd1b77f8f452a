"""CUDA's driver API: empty contexts, every kind of memory, contexts that come and go, and other libraries on the GPU."""
import os
import shutil
import time

import accounts
from case import case, python, traced
from harness import NotHere, Program, gpu_used, held, nvcc


@case()
def empty(r):
    """A process with a primary context and no more: what the [context] line of every other must be."""
    want = accounts.empty_context("0")
    for when in (), ("init",):  # attached before cuInit, and between that and the context
        with traced(r, python("driver_calls.py", "retain", *when)) as t:
            v, s = t.at("retained")
            lines = {k: n for k, n in s.lines(t.pid, 0).items() if n}
            r.equal("the lines of a traced one, and NVML's figure of an untraced one", lines, {"[context]": want})
            t.finish()


@case("cuda.bindings")
def driver_api(r):
    """Call by call through cuda-python, with VMM, graphs, a second context and a reset."""
    with traced(r, python("driver_api.py")) as t:
        while True:
            v = t.program.expect(None)
            s = t.check(v)
            if "want" in v:
                r.equal(f"tracked at {v['name']}", s.device(), v["want"])
            if v["name"] == "end":
                break
            t.go()
        t.finish()


def every_kind(r):
    binary = os.path.join(r.out, f"every_kind.{r.name}")
    nvcc(python("every_kind.cu")[1], binary)
    return binary


@case()
def static_cpp(r):
    binary = every_kind(r)
    for api in ("driver", "both", "runtime"):
        reports = r.path("-oom-" + api)
        shutil.rmtree(reports, ignore_errors=True)
        with traced(r, [binary], flags=("--api", api, "--oom-dir", reports), suffix="-" + api) as t:
            t.unseen = api == "runtime"
            v, s = t.at("held")
            if t.unseen:
                a = s.account(t.pid, 0)
                r.check("--api runtime: the rest of NVML's figure is one line", set(s.lines(t.pid, 0)) == {"allocations", accounts.REMAINDER}
                        and a["total_bytes"] == v["processes"][0]["nvml"]["0"], a)
            vmm = () if api == "runtime" else ("vmm",)
            for kind in ("device", "managed", "async", "host", "host_registered", "array", *vmm):
                r.equal(f"--api {api}: {kind}", s.sum(kind=kind), v[kind])
            r.equal(f"--api {api}: out of memory", s.process(t.pid)["out_of_memory"], 1)
            if api != "driver":
                names = {x["labels"].get("runtime" if api == "both" else "api") for x in s.samples}
                r.check(f"--api {api}: names the runtime calls", {"cudaMalloc", "cudaMallocPitch"} <= names, names)
            r.equal("sizeof(CUarrayMapInfo)", v["map_info"], 96)
            t.go()
            v, s = t.at("freed")
            r.equal(f"--api {api}: all freed", s.asked(), 0)
            time.sleep(1)
            pages = []
            for x in os.listdir(reports):
                if x.endswith(".txt"):
                    with open(os.path.join(reports, x)) as f:
                        pages.append(f.read())
            r.check(f"--api {api}: out-of-memory report", len(pages) == 1 and "fail" in pages[0] and "32.0 TiB" in pages[0],
                    [x.splitlines()[0] for x in pages])
            s = t.finish(code=7)
            lost = {k: n for k, n in s.loss().items() if not k.startswith(("unnamed", "symbolize"))}
            r.equal(f"--api {api}: loss", lost, {})
    named = any(f["function"] in ("take_linear()", "take_linear") for x in s.samples for f in s.frames(x))
    r.check("the program's functions are named", named, [f["function"] for x in s.samples[:1] for f in s.frames(x)])


@case(alone=True)  # it looks at what the whole GPU has in use
def context_reset(r):
    before = gpu_used(0)
    with traced(r, python("driver_calls.py", "reset")) as t:
        v, s = t.at("held")
        kinds = {k: s.sum(kind=k) >> 20 for k in ("device", "async", "vmm", "array")}
        r.equal("held, MiB", kinds, {"device": 64, "async": 16, "vmm": 32, "array": 0})
        used = gpu_used(0) - before
        t.go()
        t.program.expect("reset")
        time.sleep(1)  # NVML may list it a little longer
        s = t.tracer.snapshot()
        r.equal("GPUs on which the driver lists the process", held(t.pid)["nvml"], {})
        kinds = {k: s.sum(kind=k) >> 20 for k in ("device", "async", "vmm", "array")}
        r.equal("what outlives the context, MiB", kinds, {"device": 0, "async": 16, "vmm": 32, "array": 0})
        r.note("its accounts", {a["gpu"]: a for a in s.data["accounts"]})
        r.note("in use on the GPU, MiB", {"before the reset": used >> 20, "after": gpu_used(0) - before >> 20})
        r.equal("[context]", s.lines(t.pid, 0).get("[context]", 0), 0)
        left = (s.account(t.pid, 0) or {"total_bytes": 0})["total_bytes"]
        r.check("the total is what outlives it, and no less", 48 << 20 <= left <= 128 << 20, left)
        t.finish()


@case()
def late_reset(r):
    """Attached late: a reset of the primary context ends what it ends, and no line of the account makes up for it."""
    with traced(r, python("driver_calls.py", "reset", "late")) as t:
        t.late = True
        v, s = t.at("held")
        r.equal("device memory that was seen allocated, MiB", s.sum(kind="device") >> 20, 65)
        t.go()
        t.program.expect("reset")
        time.sleep(1)  # NVML may list it a little longer
        s = t.tracer.snapshot()
        kinds = {k: s.sum(kind=k) >> 20 for k in ("device", "async", "vmm", "array")}
        r.equal("what outlives the context, MiB", kinds, {"device": 0, "async": 16, "vmm": 32, "array": 0})
        r.equal("lines below nothing", {n: b for n, b in s.lines(t.pid, 0).items() if b < 0}, {})
        t.finish()


@case()
def late_contexts(r):
    """Attached late: another context that comes and goes takes nothing of the first one along."""
    with traced(r, python("driver_calls.py", "contexts")) as t:
        t.late = True
        v, s = t.at("held")
        r.equal("held, MiB", s.device() >> 20, 512)
        before = s.lines(t.pid, 0).get(accounts.BEFORE)
        t.go()
        v, s = t.at("destroyed")
        r.equal("held after the other context's end, MiB", s.device() >> 20, 512)
        r.equal("allocated before attach, before that and after", s.lines(t.pid, 0).get(accounts.BEFORE), before)
        t.finish()


@case("torch")
def late_first_kernel(r):
    """Attached before the first kernel: what replaces the context's local memory then is local memory, not code."""
    with traced(r, python("torch_first_kernel.py")) as t:
        t.late = True
        t.at("copied")
        t.go()
        v, s = t.at("filled")
        lines = s.lines(t.pid, 0)
        r.check("[code] is less than the new local memory", lines.get("[code]", 0) < 256 << 20, lines)
        t.finish()


@case("torch")
def restored(r):
    """A checkpoint takes a process off the GPU; a restore brings back its rows."""
    with traced(r, python("torch_suspended.py")) as t:
        v, before = t.at("held")
        other = Program(python("suspend.py", str(t.pid)))
        try:
            missing = other.expect("suspended")["missing"]
            if missing:
                raise NotHere(missing)
            r.equal("GPUs on which the driver lists the suspended process", held(t.pid)["nvml"], {})
            s = t.tracer.snapshot()
            r.check("a note says that it is suspended", any("suspended" in n for n in s.data["notes"]), s.data["notes"])
            r.equal("lines below nothing", {n: b for n, b in s.lines(t.pid, 0).items() if b < 0}, {})
            other.go()
            other.expect("restored")
            after = t.check({"name": "restored", "processes": [held(t.pid)]})
            r.equal("lines after the restore", after.lines(t.pid, 0), before.lines(t.pid, 0))
            other.go()
            r.equal("the exit code of what suspended it", other.wait(), 0)
        finally:
            other.kill()
        t.go()
        t.at("more")
        t.finish()


@case()
def video(r):
    """NVDEC's surfaces beside a context; whether NVENC has a session to give is noted."""
    with traced(r, python("video.py")) as t:
        v = t.program.expect("opened")
        r.note("NVENC", v["nvenc"])
        if v["missing"]:
            raise NotHere(v["missing"])
        s = t.check(v)
        r.note("by kind", s.by("kind"))
        t.go()
        t.at("closed")
        t.finish()


@case()
def opencl(r):
    """OpenCL, whose library asks the kernel driver itself."""
    with traced(r, python("opencl.py")) as t:
        v = t.program.expect("context")
        if v["missing"]:
            raise NotHere(v["missing"])
        r.note("libcuda is loaded", v["libcuda"])
        before = opencl_account(r, t, v)
        t.go()
        v = t.program.expect("filled")
        r.check("the buffer is in the total", opencl_account(r, t, v) - before >= v["bytes"])
        t.go()
        opencl_account(r, t, t.program.expect("released"))
        t.wait()
        t.tracer.finish()


def opencl_account(r, t, v):
    """The total of a process whose calls have no name in the table of causes."""
    s = t.tracer.snapshot()
    a, said = s.account(t.pid, 0), v["processes"][0]["nvml"].get("0")
    total = a["total_bytes"] if a else 0
    r.equal(f"total at {v['name']}", total, said)
    r.note("by kind", s.by("kind"))
    return total


@case()
def vulkan(r):
    """Memory that a process takes through Vulkan beside CUDA: NVML counts it, and the counter tells that the layer does not see it."""
    with traced(r, python("vulkan.py")) as t:
        v = t.program.expect("context")
        if v["missing"]:
            raise NotHere(v["missing"])
        t.check(v)
        t.go()
        v = t.program.expect("allocated")
        s = t.tracer.snapshot()
        a, said = s.account(t.pid, 0), v["processes"][0]["nvml"].get("0")
        r.note("NVML, the account, by Vulkan", (said, a["total_bytes"], v["bytes"]))
        if said != a["total_bytes"]:
            r.check("the difference is counted", s.loss().get("driver_total_differs", 0) > 0, s.loss())
        else:
            r.check("the total is NVML's", a["driver_bytes"] == said, a)
        t.wait()
        t.tracer.finish()


def pools_at(r, where, place, number, on_gpu):
    """Memory of a pool is where the pool is, and every total is NVML's."""
    with traced(r, python("driver_calls.py", "pools", str(place), str(number)), suffix="-" + where) as t:
        _, s = t.at("pool")
        r.equal(f"{where}: async memory by GPU, MiB", {g: s.sum(kind="async", gpu=g) >> 20 for g in ("0", "1") if s.sum(kind="async", gpu=g)},
                {on_gpu: 256} if on_gpu else {})
        r.equal(f"{where}: host memory of the pool", s.sum(kind="async_host"), 0 if on_gpu else 256 << 20)
        t.go()
        _, s = t.at("default")
        r.equal(f"{where}: async memory of GPU 0", s.sum(kind="async", gpu="0"), (128 + (256 if on_gpu == "0" else 0)) << 20)
        if on_gpu == "0":
            t.go()
            t.at("set")
        t.finish()


@case()
def pool_places(r):
    """Pools on the GPU, on the host and on a NUMA node."""
    for where, place, on_gpu in (("gpu", 1, "0"), ("host", 2, None), ("numa", 3, None)):
        pools_at(r, where, place, 0, on_gpu)


@case(gpus=2)
def pool_elsewhere(r):
    """A pool on another GPU than the thread's."""
    pools_at(r, "other", 1, 1, "1")


@case()
def context_endings(r):
    """cuCtxAttach and cuCtxDetach, and green contexts."""
    with traced(r, python("driver_calls.py", "endings")) as t:
        for name in ("attached", "detached", "green"):
            t.at(name)
            t.go()
        t.at("green destroyed")
        t.finish()
