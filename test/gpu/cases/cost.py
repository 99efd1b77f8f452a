"""What tracing costs: a call's programs, attaching, a training step."""
import contextlib
import os
import statistics
import time

from case import case, python, traced
from harness import TOOL, Program, Tracer, gpu_count


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


SWITCH = "/proc/sys/kernel/bpf_stats_enabled"


@contextlib.contextmanager
def statistics_on():
    """The kernel counts the runs of BPF programs, and what they take."""
    with open(SWITCH) as f:
        before = f.read()
    with open(SWITCH, "w") as f:
        f.write("1")
    try:
        yield
    finally:
        with open(SWITCH, "w") as f:
            f.write(before)


# Each tensor is asked of the driver.
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
# And of the kernel driver.
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def a_return(r, flags):
    """What a return of an allocation takes the kernel's programs, ns, in a job that makes many."""
    with traced(r, python("torch_train.py", "blocks"), ASYNC, flags) as t, statistics_on():
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
        (entries, entry), (returns, exit_) = sorted(runs[-2:], key=lambda x: x[1])
        allocs = s2.asked("alloc_objects") - s.asked("alloc_objects")
        if entries < returns / 2:  # sessions: one program runs at the entry and at the return, 110 ns at the entry
            entries = returns = returns // 2
            entry = 110 * entries
            exit_ -= entry
        # A free takes no stack: 250 ns of the return program (BenchmarkExit/no_stack), if it runs at all.
        each = (exit_ - 250 * max(0, returns - allocs)) / allocs
        r.note("entries, returns, of them allocations", (entries, returns, allocs))
        r.note("ns an entry", round(entry / entries))
        r.note(f"ns a return of an allocation {' '.join(flags)}", round(each))
        r.note("median of the stacks' frames shown", statistics.median(len(x["stack"]) for x in s2.samples))
        r.note("stacks", s2.data["notes"])
        return each


@case("torch", alone=True)
def cost(r):
    """What the kernel's own statistics say a stack costs that the memo has, and one that is unwound."""
    known, unwound = a_return(r, ()), a_return(r, ("--no-stack-memo",))
    r.check("a stack from the memo takes at most an eighth of an unwind", known * 8 <= unwound,
            f"{known / 1000:.2f} us of {unwound / 1000:.2f}: 1 / {unwound / known:.1f}")


@case("torch")
def verified(r):
    """A million stacks from the memo, each of them unwound as well."""
    with traced(r, python("torch_train.py", "blocks"), ASYNC, ("--verify-stacks", "1")) as t:
        t.at("trained")
        told = 0
        while told < 1_000_000:
            for name in "block", "time":
                t.go()
                t.program.expect(name)
            s = t.tracer.snapshot()
            note = next((x for x in s.data["notes"] if x.startswith("verified: ")), "verified: 0 ")
            if int(note.split()[1]) == told:
                break
            told = int(note.split()[1])
        r.equal("stacks that the unwind contradicts", s.loss().get("stack_memo_mismatches", 0), 0)
        r.check("a million were compared", told >= 1_000_000, note)


@case("torch", alone=True)
def attach(r):
    """How long until every call of a running PyTorch process is seen."""
    p = Program(python("torch_train.py", "blocks"))
    try:
        p.expect("ready")
        p.go()
        p.expect("trained")
        for name, limit, flags in (("no table is cached", 0.5, ["--no-cache"]), ("the cache is warm", 0.15, []),
                                   ("frame pointers", 0.3, ["--stacks", "fp"])):
            times, resident = [], []
            if not flags:
                Tracer(p.pid, r.path(), record=False).stop()  # fills the cache
            for _ in range(5):
                t = Tracer(p.pid, r.path(), *flags, record=False)
                times.append(t.attach_seconds)
                time.sleep(1)
                resident.append(t.rss("VmRSS"))
                t.stop()
            median = statistics.median(times)
            r.check(f"attach, {name}: at most {limit} s", median <= limit, f"median {median:.2f} s of {[round(x, 2) for x in times]}")
            r.note("resident a second later, MiB", [x >> 20 for x in resident])
    finally:
        p.kill()


PAIRS, MOST = 12, 1.005
MODULES_MOST = 1.05
ASYNC_PAIRS, ASYNC_MOST = 5, 1.15
UNCACHED_PAIRS, UNCACHED_MOST = 2, 1.15
STEPS = 40  # of a block of torch_train.py


def ratios(times):
    """Of each but the first and the last, to the mean of its neighbours: a slow drift cancels out."""
    return [2 * b / (a + c) for a, b, c in zip(times, times[1:], times[2:])]


def on_and_off(r, env, pairs, *flags):
    """Milliseconds that a step takes: in blocks with nothing to tell them apart, and with gpumemtrace
    off and on in turn, in one process."""
    p = Program(python("torch_train.py", "blocks"), env)
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
        idle = [block() for _ in range(pairs + 2)]
        times = [block()]
        for _ in range(pairs):
            begin = time.perf_counter()
            t = Tracer(p.pid, r.path(), *flags, record=False)
            r.note("attach_seconds", round(time.perf_counter() - begin, 3))
            times.append(block())
            begin = time.perf_counter()
            t.stop()
            r.note("detach_and_write_seconds", round(time.perf_counter() - begin, 3))
            times.append(block())
        p.expect("block")
        p.go("end")
        return idle, times
    finally:
        p.kill()
        if t:
            t.process.kill()


@case("torch", alone=True)
def overhead(r):
    """A cached training step: blocks of steps, with gpumemtrace on and off in turn.

    A block with it is compared with those before and after it. What that says of blocks which
    differ in nothing, three in a row without it, is the noise."""
    idle, times = on_and_off(r, {}, PAIRS)
    noise, traced_ones = ratios(idle), ratios(times)[::2]
    r.note("step ms without, then off and on in turn", ([round(x, 3) for x in idle], [round(x, 3) for x in times]))
    r.note("noise: ratios where nothing differs", [round(x, 4) for x in noise])
    r.note("noise: their median, and median distance from 1",
           (round(statistics.median(noise), 4), round(statistics.median(abs(x - 1) for x in noise), 4)))
    r.note("ratios with it on", [round(x, 4) for x in traced_ones])
    ratio = statistics.median(traced_ones)
    r.check(f"a step takes at most {MOST} times as long", ratio <= MOST, f"median {ratio:.4f} of {PAIRS}")


@case("torch", alone=True)
def overhead_tensors(r):
    """With every tensor's stack, beside PyTorch's own recorder, in one process. The first model's step is
    bound by the CPU, the second's by the GPU."""
    for sizes, pairs in (("8192", "512", "12", "8"), 6), (("8192", "2048", "12", "16"), 4):
        p = Program(python("torch_train.py", "blocks", *sizes))
        t = None
        try:
            for name in "ready", "trained":
                p.expect(name)
                p.go()

            def block(how=""):
                p.expect("block")
                p.go(how)
                v = p.expect("time")
                p.go()
                return v

            block()
            idle, times, made = [block()["median_ms"]], {}, 0
            for i in range(pairs):
                for how in "python", "all", "traced":
                    traced = how == "traced"
                    if traced:
                        t = Tracer(p.pid, r.path(), "--tensors", record=False)
                    v = block("" if traced else how)
                    if traced:
                        t.stop()
                    after = block()
                    made = after["made"] - v["made"]
                    times.setdefault(how, []).append(2 * v["median_ms"] / (idle[-1] + after["median_ms"]))
                    idle.append(after["median_ms"])
            p.expect("block")
            p.go("end")
        finally:
            p.kill()
            if t:
                t.process.kill()
        ratio = {how: statistics.median(x) for how, x in times.items()}
        r.note(f"model {sizes}: tensors a step, ms of a step without", (made / STEPS, [round(x, 2) for x in idle]))
        r.note("noise: median ratio where nothing differs", round(statistics.median(ratios(idle)), 4))
        r.note("ratios", {how: [round(x, 3) for x in v] for how, v in times.items()})
        note = ", ".join(f"{how} {x:.3f}" for how, x in ratio.items())
        if sizes[1] == "512":
            r.check("all stacks cost at most half of what the recorder's cost", 2 * (ratio["traced"] - 1) <= ratio["all"] - 1, note)
            r.check("and less than the recorder's Python stacks", ratio["traced"] < ratio["python"], note)
        else:
            r.check("a step bound by the GPU takes at most 1.01 times as long", ratio["traced"] <= 1.01, note)


@case("torch", alone=True)
def tensor_programs(r):
    """What the kernel's programs take for a tensor that is made and for one that is freed, and what that
    adds to the step that is bound by the CPU, beside PyTorch's own recorder with Python stacks. With
    GPUMEMTRACE_OTHER, the path of another build, the same of that in the same process."""
    builds = {"this": TOOL, **({"other": os.environ["GPUMEMTRACE_OTHER"]} if "GPUMEMTRACE_OTHER" in os.environ else {})}
    p = Program(python("torch_train.py", "blocks", "8192", "512", "12", "8"))
    t = None

    def block(how=""):
        p.expect("block")
        p.go(how)
        v = p.expect("time")
        p.go()
        return v

    def trace(name, *flags):
        return Tracer(p.pid, r.path("-" + name), "--tensors", *flags, record=False, tool=builds[name])

    try:
        for name in "ready", "trained":
            p.expect(name)
            p.go()
        block()
        each = {}
        for name in builds:
            for frees in (), ("--free-stacks", "--record", r.path("-" + name + ".gmt"), "--force"):
                t = trace(name, *frees)
                block()  # its stacks are new
                with statistics_on():
                    made, a = block()["made"], program_runs(t.process.pid)
                    made, b = block()["made"] - made, program_runs(t.process.pid)
                t.stop()
                runs = {i: (b[i][0] - a[i][0], b[i][1] - a[i][1]) for i in a if b[i][0] - a[i][0] >= made}
                each[name, bool(frees)] = sum(ns for _, ns in runs.values()) / sum(n for n, _ in runs.values())
                r.note(f"{name} build{' with stacks of frees, too' if frees else ''}: runs and ns a step, of each program",
                       [(n // STEPS, ns // STEPS) for n, ns in runs.values()])
            mean, stack = each[name, False], each[name, True]
            r.note(f"{name} build: ns a probe, a tensor made, a tensor freed", (round(mean), round(stack), round(2 * mean - stack)))
        idle, times = [block()["median_ms"]], {}
        for i in range(PAIRS):
            for how in ("python", *builds):
                if how in builds:
                    t = trace(how)
                v = block("" if how in builds else how)
                if how in builds:
                    t.stop()
                idle.append(block()["median_ms"])
                times.setdefault(how, []).append(2 * v["median_ms"] / (idle[-2] + idle[-1]))
        p.expect("block")
        p.go("end")
    finally:
        p.kill()
        if t:
            t.process.kill()
    r.note("ms of a step without", [round(x, 2) for x in idle])
    r.note("noise: ratios where nothing differs", [round(x, 3) for x in ratios(idle)])
    r.note("ratios", {how: [round(x, 3) for x in v] for how, v in times.items()})
    ratio = {how: statistics.median(x) for how, x in times.items()}
    errors = {how: round(statistics.stdev(x) / len(x) ** 0.5, 4) for how, x in times.items()}
    note = ", ".join(f"{how} {x:.3f} +- {errors[how]}" for how, x in ratio.items())
    r.check("a program takes at most 0.45 us", each["this", False] <= 450, f"{each['this', False]:.0f} ns")
    r.check("a step takes at most 1.11 times as long", ratio["this"] <= 1.11, note)
    r.check("and less than with the recorder's Python stacks", ratio["this"] < ratio["python"], note)


def by_stack(data, rows):
    """Bytes by the functions of a stack, of (stack, bytes)."""
    out = {}
    for stack, n in rows:
        names = tuple(line["function"] for index in stack for line in data["locations"][index]["lines"])
        if n:
            out[names] = out.get(names, 0) + n
    return out


@case("torch")
def windows_peak(r):
    """What stacks hold at the peak of a step, as windows see it, against the peak of a recording of every tensor."""
    p = Program(python("torch_train.py", "blocks", "8192", "512", "12", "8"))
    t = None

    def train(blocks):
        for _ in range(blocks):
            p.expect("block")
            p.go()
            p.expect("time")
            p.go()

    try:
        for name in "ready", "trained":
            p.expect(name)
            p.go()
        train(1)
        t = Tracer(p.pid, r.path(), "--tensors-window", "0.5s", "--tensors-every", "2s")
        train(6)
        s = t.stop()
        t = Tracer(p.pid, r.path("-whole"), "--tensors")
        train(2)
        t.stop()
        whole = t.at("peak")
    finally:
        p.kill()
        if t:
            t.process.kill()
    x, = s.data["windows"]
    r.note("windows, whole steps, peak, from before, reserved", [x[k] for k in ("windows", "steps", "peak_bytes", "before_bytes", "reserved_bytes")])
    r.check("whole steps in two windows at least", x["windows"] >= 2 and x["whole_step"] and x["steps"] >= 2)
    got = by_stack(s.data, [(row["stack"], row["peak_bytes"]) for row in x["rows"]])
    want = by_stack(whole.data, [(y["stack"], y["values"]["inuse_bytes"]) for y in whole.samples if y["labels"]["kind"] == "tensor"])
    r.note("in tensors with a stack at the peak, in windows and of the whole trace", (sum(got.values()), sum(want.values())))
    differ = sum(abs(got.get(k, 0) - want.get(k, 0)) for k in got.keys() | want.keys())
    r.check("the peak of a step by stack is that of a whole trace, within 1 %", 0 < sum(want.values()) and differ <= sum(want.values()) / 100,
            f"{differ} of {sum(want.values())} bytes differ, {len(got)} and {len(want)} stacks")
    r.equal("no tensor is in use between windows", s.sum(kind="tensor"), 0)
    lost = {k: n for k, n in s.loss().items() if k.startswith("window_")}
    r.equal("tensors lost", lost, {})


WINDOW, EVERY, TRACED, WINDOW_MOST = 2, 60, 1800, 1.005  # seconds, of all processes together
BEFORE, AFTER = 1, 4  # seconds around a window in which it may cost something


def excess(steps, begin):
    """Seconds that steps from BEFORE begin to AFTER the end of a window took longer than those of the rest of that
    minute do, and the seconds of all. With the middle between two windows for begin there is no window in the rest
    either, so it says what noise is."""
    near, rest = [], []
    for a, b in zip(steps, steps[1:]):
        at = a - begin
        if -BEFORE <= at < WINDOW + AFTER:
            near.append(b - a)
        elif WINDOW + AFTER - EVERY / 2 <= at < EVERY / 2 - BEFORE:
            rest.append(b - a)
    return sum(near) - len(near) * statistics.mean(rest), EVERY


@case("torch", alone=True)
def overhead_windows(r):
    """What windows of tensors add to steps that are bound by the CPU: half an hour, of processes side by side. Steps
    differ by more from minute to minute than windows cost, so those beside a window are compared with the rest of its
    minute. What tracing costs between windows is the case overhead."""
    gpus = gpu_count()
    n = 2 * gpus
    seconds = TRACED / n + EVERY
    programs, tracers, begins = [], [], []
    try:
        for i in range(n):
            p = Program(python("torch_train.py", f"steps:{seconds}", "8192", "512", "12", "8"), {"CUDA_VISIBLE_DEVICES": str(i % gpus)})
            programs.append(p)
        for name in "ready", "trained":
            for p in programs:
                p.expect(name)
                p.go()
        for i, p in enumerate(programs):
            time.sleep(EVERY / 2 / n)  # no two have a window at the same time
            begins.append(time.monotonic())
            tracers.append(Tracer(p.pid, r.path(f"-{i}"), "--tensors-window", f"{WINDOW}s", "--tensors-every", f"{EVERY}s", record=False))
        time.sleep(seconds - EVERY / 2)
        said = [p.expect("steps") for p in programs]
        seen = [t.stop().data["meta"]["tensor_windows"] for t in tracers]
    finally:
        for p in programs:
            p.kill()
        for t in tracers:
            t.process.kill()
    at_windows, between = [], []
    for v, begin, x in zip(said, begins, seen):
        ends = v["ends"]
        for k in range(1, x["windows"]):  # the first one is beside the attaching
            at = begin + k * EVERY
            if at + EVERY < ends[-1]:
                at_windows.append(excess(ends, at))
                between.append(excess(ends, at + EVERY / 2))
    r.note("windows, and their seconds, of each process", [(x["windows"], round(x["time_ns"] / 1e9, 2)) for x in seen])
    r.check("windows lie where they are looked for", all(
        abs(x["windows"] - (v["ends"][-1] - begin) / EVERY) <= 1.5 and x["time_ns"] / 1e9 < (WINDOW + 0.5) * x["windows"] for v, begin, x in zip(said, begins, seen)))
    r.check("and there are enough", len(at_windows) >= 2 * n and len(at_windows) >= TRACED / EVERY / 2, len(at_windows))
    ratio, noise = (1 + sum(x for x, _ in part) / sum(y for _, y in part) for part in (at_windows, between))
    r.note("mean step ms of each process", [round(1e3 * statistics.mean(b - a for a, b in zip(v["ends"], v["ends"][1:])), 3) for v in said])
    r.note("seconds that each window cost", [round(x, 3) for x, _ in at_windows])
    r.note("noise: the same around the middles between windows", [round(x, 3) for x, _ in between])
    r.note("noise: what would be its ratio", round(noise, 5))
    error = statistics.stdev(x / y for x, y in at_windows) / len(at_windows) ** 0.5
    r.check(f"windows make a step take at most {WINDOW_MOST} times as long", ratio <= WINDOW_MOST,
            f"mean {ratio:.5f}, with a standard error of {error:.5f}, of {len(at_windows)} minutes")


@case("torch", alone=True)
def overhead_modules(r):
    """With every tensor's stack, and with the modules in it too: the step that is bound by the CPU."""
    p = Program(python("torch_train.py", "blocks", "8192", "512", "12", "8"))
    t = None
    try:
        for name in "ready", "trained":
            p.expect(name)
            p.go()

        def block():
            p.expect("block")
            p.go()
            ms = p.expect("time")["median_ms"]
            p.go()
            return ms

        block()
        idle, with_tensors, with_modules = [block()], [], []
        for i in range(PAIRS):
            # One is first in each second pair: a slow drift cancels out.
            for flags, times in ((("--tensors",), with_tensors), (("--tensors", "--holders", "1h"), with_modules))[::1 - 2 * (i % 2)]:
                t = Tracer(p.pid, r.path(), *flags, record=False)
                ms = block()
                t.stop()
                after = block()
                times.append(2 * ms / (idle[-1] + after))
                idle.append(after)
        p.expect("block")
        p.go("end")
    finally:
        p.kill()
        if t:
            t.process.kill()
    noise = ratios(idle)
    r.note("ms of a step without", [round(x, 2) for x in idle])
    r.note("noise: ratios where nothing differs", [round(x, 3) for x in noise])
    r.note("with tensors, and with modules too, to the steps beside", [[round(x, 3) for x in part] for part in (with_tensors, with_modules)])
    pairs = [m / w for m, w in zip(with_modules, with_tensors)]
    r.note("ratios of the pairs", [round(x, 3) for x in pairs])
    r.note("noise: median distance from 1", round(statistics.median(abs(x - 1) for x in noise), 4))
    ratio = statistics.median(pairs)
    r.check(f"a step with modules takes at most {MODULES_MOST} times as long as one with tensors alone", ratio <= MODULES_MOST, f"median {ratio:.4f} of {PAIRS}")


@case("torch", alone=True)
def overhead_async(r):
    """The same where each tensor is asked of the driver, and what of it the traps alone take: all but
    the time of the kernel's programs, which its statistics tell in a run of their own."""
    idle, times = on_and_off(r, ASYNC, ASYNC_PAIRS)
    _, pointers = on_and_off(r, ASYNC, 2, "--stacks", "fp")
    with traced(r, python("torch_train.py", "blocks"), ASYNC, suffix="-programs") as t, statistics_on():
        t.at("trained")
        for name in "block", "time":
            t.go()
            t.program.expect(name)
        t.go()
        t.program.expect("block")
        a = program_runs(t.tracer.process.pid)
        t.go()
        t.program.expect("time")
        b = program_runs(t.tracer.process.pid)
    programs = sum(b[i][1] - a[i][1] for i in a) / STEPS / 1e6
    without, ratio = statistics.median(idle), statistics.median(ratios(times)[::2])
    r.note("step ms without, then off and on in turn", ([round(x, 3) for x in idle], [round(x, 3) for x in times]))
    r.note("noise: median ratio where nothing differs", round(statistics.median(ratios(idle)), 4))
    r.note("median ratio with frame pointers alone", round(statistics.median(ratios(pointers)[::2]), 4))
    r.note("ms a step of the kernel's programs", round(programs, 3))
    r.note("the floor: ratio of the traps alone", round(ratio - programs / without, 4))
    r.check(f"a step takes at most {ASYNC_MOST} times as long", ratio <= ASYNC_MOST, f"median {ratio:.4f} of {ASYNC_PAIRS}")


@case("torch", alone=True)
def overhead_uncached(r):
    """The same where the kernel driver is asked for each tensor, too: by some thousand calls a step."""
    idle, times = on_and_off(r, UNCACHED, UNCACHED_PAIRS)
    ratio = statistics.median(ratios(times)[::2])
    r.note("step ms without, then off and on in turn", ([round(x, 3) for x in idle], [round(x, 3) for x in times]))
    r.note("noise: median ratio where nothing differs", round(statistics.median(ratios(idle)), 4))
    r.check(f"a step takes at most {UNCACHED_MOST} times as long", ratio <= UNCACHED_MOST, f"median {ratio:.4f} of {UNCACHED_PAIRS}")
