"""Who holds each tensor, read from a program's heap, beside what the program itself knows."""
import concurrent.futures
import json
import os
import re
import statistics
import subprocess
import time

from case import TENSORS, case, python
from harness import TOOL, Program, Tracer

from .cost import MOST

CULPRITS = {"list": "history", "graph": "total", "closure": "captured", "cycle": "Node", "thread": "kept_by_thread", "lru_cache": "positions"}


def read(pid):
    """One reading, with the seconds, the core's seconds and the peak memory of the reader."""
    begin = time.perf_counter()
    process = subprocess.Popen([TOOL, "holders", "-p", str(pid), "--format", "json"], stdout=subprocess.PIPE)
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took = time.perf_counter() - begin
    if process.returncode:
        raise RuntimeError(f"it ended with {process.returncode}")
    found = json.loads(text)
    cost = {"seconds": round(took, 3), "core": round(used.ru_utime + used.ru_stime, 3), "peak_mib": used.ru_maxrss >> 10, "objects": found["objects"]}
    if found.get("refused"):
        raise RuntimeError(found["refused"])
    return found, cost


def plain(path):
    """A path with dots, as named_parameters() writes it."""
    return re.sub(r"\[(\d+)\]", r".\1", path)


def compare(r, found, truth):
    on_gpu = {s["address"]: s for s in found["storages"] or [] if s["device"] >= 0}
    want = dict(truth["storages"])
    wrong = [[hex(a), n, on_gpu.get(a, {}).get("bytes")] for a, n in want.items() if on_gpu.get(a, {}).get("bytes") != n]
    r.check("storages that the program finds, with their sizes", not wrong, f"{len(want) - len(wrong)} of {len(want)}, wrong {wrong[:5]}")
    blocks, starts = truth["blocks"], sorted(on_gpu)
    held = [n for a, n in blocks if any(a <= s < a + n for s in starts)]
    missing = sorted(([hex(a), n] for a, n in blocks if not any(a <= s < a + n for s in starts)), key=lambda x: -x[1])
    share = sum(held) / max(1, sum(n for _, n in blocks))
    r.check("bytes under a holder or a graph", share >= 0.99, f"{share:.4f} of {truth['allocated']}, missing {missing[:6]}")
    nameless = {}
    for name, address in truth["names"].items():
        s = on_gpu.get(address) or next((x for x in found["storages"] if x["address"] == address), None)
        if s and not any(plain(p).endswith(name) for p in [s.get("holder") or "", *(s.get("more") or [])]):
            nameless[name] = [s.get("holder"), s.get("more")]
        elif not s:
            nameless[name] = None
    r.check("names of parameters", not nameless, f"{len(truth['names']) - len(nameless)} of {len(truth['names'])}, not {list(nameless.items())[:4]}")
    for s in sorted(on_gpu.values(), key=lambda x: -x["bytes"]):
        if not s["holder"]:
            r.note("held by nobody", [hex(s["address"]), s["bytes"]])
    rows = {}
    for s in on_gpu.values():
        row = rows.setdefault(re.sub(r"\d+", "N", s["holder"] or ""), [0, 0])
        row[0] += s["bytes"]
        row[1] += 1
    for path, (size, count) in sorted(rows.items(), key=lambda x: -x[1][0])[:25]:
        r.note(f"{size} {count}", path)
    for x in (found["retainers"] or [])[:6]:
        r.note("retains", x)
    r.note("lost", {x["name"]: x["value"] for x in found["loss"] if x["value"]})


def checked(r, what, *args):
    program = Program(python("torch_holders.py", what, *args))
    try:
        program.expect("ready")
        program.go()
        truth = program.expect("trained")["truth"]
        found, cost = read(program.pid)
        r.note(f"{what}: cost", cost)
        compare(r, found, truth)
        return found, program
    except BaseException:
        program.kill()
        raise


def while_training(r, program):
    """Steps while one reading follows the other, and steps alone before and after."""
    def block(readings=False):
        program.go()
        costs = []
        if readings:
            with concurrent.futures.ThreadPoolExecutor() as pool:
                said = pool.submit(program.expect, "steps")
                while not said.done():
                    costs.append(read(program.pid))
                return said.result()["median_ms"], costs
        return program.expect("steps")["median_ms"], costs
    for _ in range(2):
        block()
    alone, beside, costs = [block()[0]], [], []
    for _ in range(6):
        ms, more = block(readings=True)
        beside.append(ms)
        costs += more
        alone.append(block()[0])
    r.note("ms of a step alone and while it is read", [[round(x, 2) for x in part] for part in (alone, beside)])
    r.note("noise: ratios of steps alone", [round(b / a, 3) for a, b in zip(alone, alone[1:])])
    ratios = [2 * b / (x + y) for b, x, y in zip(beside, alone, alone[1:])]
    r.check(f"a step takes at most {MOST} times as long", statistics.median(ratios) <= MOST, [round(x, 3) for x in ratios])
    for found, cost in costs:
        r.note("while it trains", [cost, {x["name"]: x["value"] for x in found["loss"] if x["value"]}, len(found["storages"] or [])])


def trains(r, what, loop=False):
    found, program = checked(r, what)
    try:
        if loop:
            while_training(r, program)
    finally:
        program.kill()


@case("torch", "transformers", alone=True)
def holders_gpt2(r):
    trains(r, "gpt2", loop=True)


@case("torch", "transformers", "accelerate")
def holders_trainer(r):
    trains(r, "trainer")


@case("torch", "timm")
def holders_timm(r):
    trains(r, "timm")


@case("torch", "torchvision")
def holders_torchvision(r):
    trains(r, "torchvision")


@case("torch", "peft", "transformers")
def holders_peft(r):
    trains(r, "peft")


@case("torch", "lightning")
def holders_lightning(r):
    trains(r, "lightning")


@case("torch")
def holders_leaks(r):
    """Six programs with one leak each: the first retainer is the culprit."""
    for name, culprit in CULPRITS.items():
        found, program = checked(r, "leaks", name)
        program.kill()
        first = (found["retainers"] or [{}])[0]
        r.check(f"{name}: the first retainer", culprit in first.get("holder", ""), first)


@case("torch", "transformers", "peft")
def holders_late(r):
    """Attached late: tensors from before have the names of parameters, gradients and optimizer state."""
    for what in "gpt2", "peft":
        program = Program(python("torch_holders.py", what))
        tracer = None
        try:
            program.expect("ready")
            program.go()
            truth = program.expect("trained")["truth"]
            tracer = Tracer(program.pid, r.path("-" + what), *TENSORS, "--holders", "1h")
            program.go()
            program.expect("steps")
            s = tracer.stop()
            old = [x for x in s.samples if any(line["function"] == "[tensors from before attach]" for line in s.frames(x))]
            held = {plain(x["labels"].get("holder", "")): x for x in old if x["values"]["inuse_bytes"]}
            nameless = held.get("", {"values": {"inuse_bytes": 0}})["values"]["inuse_bytes"]
            r.check(f"{what}: bytes from before attach without a holder", nameless <= truth["allocated"] / 100, f"{nameless} of {truth['allocated']}")
            names = {}  # of each parameter: some have two
            for name, address in truth["names"].items():
                names.setdefault(address, []).append(name)
            missing = [all_ for all_ in names.values() if not any(path.endswith(tuple(all_)) and x["labels"]["category"] == "parameter" for path, x in held.items())]
            r.check(f"{what}: names of parameters", not missing, f"{len(names) - len(missing)} of {len(names)}, not {missing[:5]}")
            r.note(f"{what}: bytes by category", {c: sum(x["values"]["inuse_bytes"] for x in old if x["labels"].get("category") == c) for c in ("parameter", "gradient", "optimizer_state", "buffer")})
        finally:
            program.kill()
            if tracer:
                tracer.process.kill()


@case("jax")
def holders_jax(r):
    """Arrays of JAX by path, with the sizes, types and shapes that the program itself knows."""
    program = Program(python("jax_holders.py"))
    try:
        program.expect("ready")
        program.go()
        v = program.expect("held")
        r.note("JAX, classes and aval", [v["jax"], v["mro"], v["aval"]])
        found, cost = read(program.pid)
        r.note("cost", cost)
        r.equal("framework", found["framework"], "JAX")
        held = {s["holder"]: s for s in found["storages"] or []}
        wrong = {path: [want, held.get(path)] for path, want in v["truth"].items()
                 if path not in held or [held[path]["bytes"], held[path]["dtype"], held[path]["shape"] or []] != want}
        r.check("arrays by path, with size, type and shape", not wrong, f"{len(v['truth']) - len(wrong)} of {len(v['truth'])}, wrong {wrong}")
        r.check("every array has no address and no device", all(s["address"] == 0 and s["device"] == -2 for s in held.values()), len(held))
        lost = {x["name"]: x["value"] for x in found["loss"] if x["value"]}
        r.check("arrays that gc finds", len(found["storages"] or []) + lost.get("heap_tensors_unfit", 0) >= v["arrays"], f"{len(found['storages'] or [])} of {v['arrays']}, lost {lost}")
        r.check("what keeps most", (found["retainers"] or [{}])[0].get("holder") == "history", (found["retainers"] or [])[:3])
        # What docs/holders.md says is not known.
        r.note("donated and deleted arrays: the program says, and the reading", [v["gone"], {path: held.get(path) for path in v["gone"]}])
        r.note("bytes of arrays, and in use on the device", [sum(s["bytes"] for s in held.values()), v["in_use"]])
    finally:
        program.kill()
