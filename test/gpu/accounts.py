"""The account of every process on every GPU, against what NVML says of it."""
import os
import sys

from harness import DEVICE, DRIVER, HERE, Failed, Program

LAYER = ("allocations", "tensors", "[cached, unused]", "tensors in segments from before attach")
BEFORE, REMAINDER, UNKNOWN = "[allocated before attach]", "[cuda context and driver]", ("[other]", "[cause not known]")
NEAR = 5 << 20  # bytes that a context may differ by from an empty process's
EMPTY = {}  # bytes of a process with nothing but a context, by the GPU's index


def empty_context(gpu):
    """What NVML says of a process on a GPU that retained its primary context, and did no more."""
    if gpu not in EMPTY:
        p = Program([sys.executable, os.path.join(HERE, "programs", "driver_calls.py"), "empty", gpu])
        try:
            said = p.expect("empty")["processes"][0]["nvml"]
        finally:
            p.kill()
        if list(said) != [gpu]:
            raise Failed(f"a context on CUDA's device {gpu} alone is on {said} to NVML")
        EMPTY[gpu] = said[gpu]
    return EMPTY[gpu]


def problems(s, pid, gpu, said, late, contexts):
    """What is wrong with one account. said is NVML's figure, None for not listed; late tells
    that the process was attached to late, and contexts how many it has on the GPU, None for
    a number that is not known."""
    a = s.account(pid, gpu)
    if a is None:
        return [] if said is None else [f"no account, NVML says {said}"]
    lines, total, out = s.lines(pid, gpu), a["total_bytes"], []

    def equal(what, got, want):
        if got != want:
            out.append(f"{what} {got}, want {want} ({got - want:+})")

    if said is None:  # NVML lists a process only if it has a context, and physical memory (cuMemCreate) and pools need none
        equal("total of a process that NVML does not list", total, s.sum(kind=("vmm", "async"), pid=pid, gpu=gpu))
    else:
        equal("total", total, said)
        if not a["known"] or not a["driver_known"] or a["inferred"]:
            out.append(f"known {a['known']}, driver_known {a['driver_known']}, inferred {a['inferred']}")
        equal("driver_bytes", a["driver_bytes"], said)
    equal("sum of the lines", sum(x["bytes"] for x in a["lines"]), total)
    equal("inuse_space of the samples", s.sum(kind=DEVICE + DRIVER, pid=pid, gpu=gpu), total)
    equal("allocations and tensors", sum(lines.get(x, 0) for x in LAYER), s.device(pid=pid, gpu=gpu))
    out += [f"{name} is {n}" for name, n in lines.items() if n < 0]
    if REMAINDER in lines:
        out.append(f"the kernel driver's calls are not seen: {REMAINDER} {lines[REMAINDER]}")
    unknown = sum(lines.get(x, 0) for x in UNKNOWN)
    if unknown and unknown * 100 >= total:
        out.append(f"of {unknown} bytes the cause is not known")
    if not late:
        if BEFORE in lines:
            out.append(f"{BEFORE} {lines[BEFORE]}, though traced from its start")
        if contexts is not None:
            want = contexts * empty_context(gpu) if contexts else 0
            if abs(lines.get("[context]", 0) - want) > NEAR:
                out.append(f"[context] {lines.get('[context]', 0)}, {contexts} empty ones have {want}")
    return out


def check(r, v, s, late=False):
    """Holds what a snapshot says of each process against what NVML said at the same checkpoint."""
    for told in v["processes"]:
        pid, nvml = told["pid"], told["nvml"]
        for gpu in sorted({*nvml, *(a["gpu"] for a in s.data["accounts"] if a["pid"] == pid)}):
            wrong = problems(s, pid, gpu, nvml.get(gpu), late, v.get("contexts", 1) if gpu in nvml else None)
            r.check(f"account at {v['name']}, pid {pid} on GPU {gpu}", not wrong,
                    "; ".join(wrong) or (f"{nvml[gpu]} bytes, as NVML says" if gpu in nvml else "NVML does not list it"))
            r.note("its lines, MiB", {name: round(n / (1 << 20), 1) for name, n in s.lines(pid, gpu).items()})
        if nvml and not late:
            physical = s.process(pid)["physical_bytes"]
            unlisted = sum(a["total_bytes"] for a in s.data["accounts"] if a["pid"] == pid and a["gpu"] not in nvml)
            want = sum(nvml.values()) + unlisted
            r.check("physical_bytes of the process", physical == want, f"{physical}, NVML {sum(nvml.values())}, where NVML does not list it {unlisted}")
    losses(r, s, late)


def losses(r, s, late=False):
    """Nothing was lost that the totals rest on."""
    lost = {k: n for k, n in s.loss().items() if k.startswith(("driver_", "tensor_"))}
    if late:
        r.note("the kernel driver's calls and tensors lost", lost)
        lost = {k: n for k, n in lost.items() if k in ("driver_total_differs", "tensor_totals_differ")}
    if lost:
        r.equal("the kernel driver's calls and tensors lost", lost, {})


def tensors(r, v, s):
    """Holds the tensors of a snapshot against what PyTorch said that it had handed out. That no
    event's total differed from the allocator's own is held by losses."""
    for told in v.get("ranks", [v]):
        pid = told["processes"][0]["pid"]
        if isinstance(told.get("allocated"), int):
            r.equal(f"PyTorch's tensors at {v['name']}, pid {pid}", s.sum(kind="tensor", pid=pid), told["allocated"])
        elif isinstance(told.get("allocated"), list):
            for gpu, held in enumerate(told["allocated"]):
                r.equal(f"PyTorch's tensors at {v['name']}, pid {pid}, GPU {gpu}", s.sum(kind="tensor", pid=pid, gpu=str(gpu)), held)
