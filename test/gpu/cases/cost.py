"""What tracing costs: a call's programs, attaching, a training step."""
import os
import statistics
import time

from case import case, python, traced
from harness import Program, Tracer


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


@case("torch", alone=True)
def cost(r):
    """What the kernel's own statistics say a call costs, in a PyTorch job that asks the driver for every tensor."""
    switch = "/proc/sys/kernel/bpf_stats_enabled"
    with open(switch) as f:
        before = f.read()
    for flags in ((), ("--no-stack-memo",)):
        with traced(r, python("torch_train.py", "blocks"), {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, flags) as t:
            try:
                with open(switch, "w") as f:
                    f.write("1")
                t.at("trained")
                for name in "block", "time":
                    t.go()
                    t.program.expect(name)
                t.go()
                t.program.expect("block")
                a, s = program_runs(t.tracer.process.pid), t.tracer.snapshot()
                t.go()
                t.program.expect("time")
                b, s2 = program_runs(t.tracer.process.pid), t.tracer.snapshot()
                runs = sorted((b[i][0] - a[i][0], b[i][1] - a[i][1]) for i in a)
                (calls, entry), (_, exit_) = sorted(runs[-2:], key=lambda x: x[1])
                allocs = s2.asked("alloc_objects") - s.asked("alloc_objects")
                # A free takes no stack: 0.25 us of the return program (BenchmarkExit/no_stack).
                each = (exit_ - 250 * (calls - allocs)) / allocs
                depth = statistics.median(len(x["stack"]) for x in s2.samples)
                r.note("calls, of them allocations", (calls, allocs))
                r.note("ns an entry", round(entry / calls))
                r.note(f"ns a return of an allocation {' '.join(flags)}", round(each))
                r.note("stacks", s2.data["notes"])
                r.check("cost" + " ".join(flags), each < (20000 if flags else 2500),
                        f"{each / 1000:.2f} us, median of the stacks' frames shown {depth}")
            finally:
                with open(switch, "w") as f:
                    f.write(before)


@case("torch", alone=True)
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
                t = Tracer(p.pid, r.path(), "--stacks", mode, record=False)
                times.append(t.attach_seconds)
                time.sleep(1)
                resident.append(t.rss("VmRSS"))
                t.stop()
            median = statistics.median(times)
            r.check(f"--stacks {mode}", median < limit, f"median {median:.2f} s of {[round(x, 2) for x in times]}")
            r.note("resident a second later, MiB", [x >> 20 for x in resident])
    finally:
        p.kill()


@case("torch", alone=True)
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
            t = Tracer(p.pid, r.path(), record=False) if i % 2 else None
            p.go()
            times["on" if t else "off"].append(p.expect("time")["median_ms"])
            if t:
                t.stop()
            p.go()
        p.expect("block")
        p.go("end")
        ratios = [on / off for on, off in zip(times["on"], times["off"])]
        r.note("step ms without", [round(x, 3) for x in times["off"]])
        r.note("step ms with", [round(x, 3) for x in times["on"]])
        r.check("within two per cent", statistics.median(ratios) < 1.02, round(statistics.median(ratios), 4))
    finally:
        p.kill()
