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


PAIRS, MOST = 12, 1.005


def ratios(times):
    """Of each but the first and the last, to the mean of its neighbours: a slow drift cancels out."""
    return [2 * b / (a + c) for a, b, c in zip(times, times[1:], times[2:])]


@case("torch", alone=True)
def overhead(r):
    """A cached training step: blocks of steps, with gpumemtrace on and off in turn, in one process.

    A block with it is compared with those before and after it. What that says of blocks which
    differ in nothing, three in a row without it, is the noise."""
    p = Program(python("torch_train.py", "blocks"))
    t = None
    try:
        p.expect("ready")
        p.go()
        p.expect("trained")
        p.go()

        def block():
            p.expect("block")
            p.go()
            ms = p.expect("time")["median_ms"]
            p.go()
            return ms

        block()  # the first one warms up
        idle = [block() for _ in range(PAIRS + 2)]
        times = [block()]
        for _ in range(PAIRS):
            t = Tracer(p.pid, r.path(), record=False)
            r.note("attach_seconds", round(t.attach_seconds, 3))
            times.append(block())
            begin = time.perf_counter()
            t.stop()
            r.note("detach_and_write_seconds", round(time.perf_counter() - begin, 3))
            times.append(block())
        p.expect("block")
        p.go("end")
        noise, traced_ones = ratios(idle), ratios(times)[::2]
        r.note("step ms without, then off and on in turn", ([round(x, 3) for x in idle], [round(x, 3) for x in times]))
        r.note("noise: ratios where nothing differs", [round(x, 4) for x in noise])
        r.note("noise: their median, and median distance from 1",
               (round(statistics.median(noise), 4), round(statistics.median(abs(x - 1) for x in noise), 4)))
        r.note("ratios with it on", [round(x, 4) for x in traced_ones])
        ratio = statistics.median(traced_ones)
        r.check(f"a step takes at most {MOST} times as long", ratio <= MOST, f"median {ratio:.4f} of {PAIRS}")
    finally:
        p.kill()
        if t:
            t.process.kill()
