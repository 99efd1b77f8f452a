"""Who holds each tensor, read from a program's heap, beside what the program itself knows."""
import bisect
import concurrent.futures
import json
import os
import re
import statistics
import subprocess
import sys
import time

from case import TENSORS, case, python, traced
from harness import TOOL, Program, Ranks, Tracer

CULPRITS = {"list": "history", "graph": "total", "closure": "captured", "cycle": "Node", "thread": 'thread "prefetch": local.kept', "lru_cache": "positions"}


def read(pid, *flags):
    """One reading, with the seconds, the core's seconds and the peak memory of the reader."""
    begin = time.perf_counter()
    process = subprocess.Popen([TOOL, "holders", "-p", str(pid), "--format", "json", *flags], stdout=subprocess.PIPE)
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


def table(pid):
    """One reading as text: the seconds that it takes, and the most memory that the command was seen to have, in MiB."""
    begin, peak = time.perf_counter(), 0
    with subprocess.Popen([TOOL, "holders", "-p", str(pid)], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:  # wait4 counts this program's own memory, too
            try:
                with open(f"/proc/{process.pid}/status") as f:
                    said = dict(line.split(":", 1) for line in f)
                peak = max(peak, int(said["VmHWM"].split()[0]) >> 10 if "gpumemtrace" in said["Name"] else 0)
            except (OSError, KeyError):
                pass
            time.sleep(0.002)
    if process.returncode:
        raise RuntimeError(f"it ended with {process.returncode}")
    return round(time.perf_counter() - begin, 3), peak


OWN = 24  # MiB that the command has without a reading


def plain(path):
    """A path with dots, as named_parameters() writes it."""
    return re.sub(r"\[(\d+)\]", r".\1", path)


def compare(r, found, truth):
    sums = [{k: v for k, v in a.items() if k not in ("statistics", "classes")} for a in found["allocators"]]
    if "no_allocators" in found:
        r.note("no allocators", found["no_allocators"])
    r.equal("PyTorch's allocators", sums, truth["allocators"])
    statistics_of = [{k: v["now"] for k, v in (a["statistics"] or {}).items()} for a in found["allocators"]]
    r.equal("their own statistics", statistics_of, [{k: v for k, v in a.items() if k in ("blocks", "segments") or k.endswith("_bytes")} | {} for a in truth["allocators"]] if not statistics_of else
            [{k: t[k] for k in s} for s, t in zip(statistics_of, truth["allocators"])])
    on_gpu = {s["address"]: s for s in found["storages"] or [] if s["device"] >= 0}
    want = dict(truth["storages"])
    wrong = [[hex(a), n, on_gpu.get(a, {}).get("bytes")] for a, n in want.items() if on_gpu.get(a, {}).get("bytes") != n]
    r.check("storages that the program finds, with their sizes", not wrong, f"{len(want) - len(wrong)} of {len(want)}, wrong {wrong[:5]}")
    # a row without a tensor is a block that only C++ holds
    blocks, starts = truth["blocks"], sorted(a for a, s in on_gpu.items() if s["tensors"])
    missing = sorted(([hex(a), n] for a, n in blocks if bisect.bisect_left(starts, a) == bisect.bisect_left(starts, a + n)), key=lambda x: -x[1])
    share = 1 - sum(n for _, n in missing) / max(1, sum(n for _, n in blocks))
    r.check("bytes under a holder or a graph", share >= 0.99, f"{share:.4f} of {truth['allocated']}, missing {missing[:6]}")
    nameless = {}
    for name, address in truth["names"].items():
        s = on_gpu.get(address) or next((x for x in found["storages"] if x["address"] == address), None)
        if s and not any(plain(p).removesuffix("._local_tensor").endswith(name) for p in [s.get("holder") or "", *(s.get("more") or [])]):
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


def checked(r, what, *args, **env):
    program = Program(python("torch_holders.py", what, *args), env)
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


TRAINS_FOR = 60  # seconds in which it is read again and again
READ_MOST = 1.01


def while_training(r, what, program):
    """Steps while the heap is read, and while another program is busy for as long as a reading, each beside the
    steps just before and after, with nothing beside them."""
    def busy(seconds):
        subprocess.run([sys.executable, "-c", f"import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"], check=True)
    end, spans, costs, seconds = time.monotonic() + TRAINS_FOR - 5, [], [], 1
    program.go()
    while time.monotonic() < end:
        for how in "read", "busy":
            begin = time.monotonic()
            if how == "read":
                costs.append(read(program.pid))
                seconds = time.monotonic() - begin
            else:
                busy(seconds)
            spans.append((how, begin, time.monotonic()))
            time.sleep(seconds)
    steps = program.expect("steps")["steps"]

    def median(begin, end):
        return statistics.median(took for at, took in steps if begin <= at and at + took <= end)
    alone = [median(a[2], b[1]) for a, b in zip(spans, spans[1:])]
    ratios = {"read": [], "busy": []}
    for (how, begin, end), before, after in zip(spans[1:], alone, alone[1:]):
        ratios[how].append(2 * median(begin, end) / (before + after))
    ratios["nothing"] = [2 * b / (a + c) for a, b, c in zip(alone, alone[1:], alone[2:])]
    for how, x in ratios.items():
        r.note(f"{what}: ratio of a step, {how} beside it", f"{statistics.mean(x):.4f} +- {statistics.stdev(x) / len(x) ** .5:.4f}, median {statistics.median(x):.4f}, of {len(x)}")
    r.note("ms of a step alone", [round(1e3 * x, 2) for x in alone])
    lost = {}
    for found, _ in costs:
        for x in found["loss"]:
            lost.setdefault(x["name"], []).append(x["value"])
    r.note("readings: seconds, the core's seconds, MiB at most, storages", [[*(c[k] for k in ("seconds", "core", "peak_mib")), len(f["storages"] or [])] for f, c in costs])
    r.note("lost", {k: v for k, v in lost.items() if any(v)})
    return statistics.mean(ratios["read"])


def trains(r, what):
    _, program = checked(r, what)
    program.kill()


@case("torch", "transformers")
def holders_gpt2(r):
    trains(r, "gpt2")


@case("torch", "transformers", "torchvision", alone=True)
def holders_step(r):
    """How much longer a step takes while the heap is read: one that is bound by the GPU, and one by the CPU, which differs
    by more from second to second than what is to be measured."""
    for what, *batch in ("torchvision", "96"), ("gpt2",):
        _, program = checked(r, what, *batch, STEPS_FOR=str(TRAINS_FOR))
        try:
            ratio = while_training(r, what, program)
        finally:
            program.kill()
        if batch:
            r.check(f"a step of {what} takes at most {READ_MOST} times as long", ratio <= READ_MOST, round(ratio, 4))


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


@case("torch", gpus=2)
def holders_fsdp2(r):
    """Ranks of torchrun, whose parameters, gradients and optimizer state are DTensors."""
    ranks = Ranks(["torch_holders.py", "fsdp2"], 2, r.path("-place"))
    try:
        ranks.expect("ready")
        ranks.go()
        for rank in ranks.expect("trained")["ranks"]:
            found, cost = read(rank["processes"][0]["pid"])
            r.note("cost", cost)
            compare(r, found, rank["truth"])
            roles = [s["role"] for s in found["storages"] if s["device"] >= 0]
            names = len(rank["truth"]["names"])
            r.equal("parameters and optimizer state", [roles.count(x) for x in ("parameter", "optimizer_state")], [names, 2 * names])
            r.check("gradients: those of a layer lie in one storage", 0 < roles.count("gradient") <= names, roles.count("gradient"))
    finally:
        ranks.kill()


@case("torch", gpus=2)
def holders_ddp(r):
    """DDP's buckets, with the sizes that DDP logs."""
    ranks = Ranks(["torch_holders.py", "ddp"], 2, r.path("-place"))
    try:
        ranks.expect("ready")
        ranks.go()
        for rank in ranks.expect("trained")["ranks"]:
            found, cost = read(rank["processes"][0]["pid"])
            r.note("cost", cost)
            compare(r, found, rank["truth"])
            buckets = sorted(s["bytes"] for s in found["storages"] if s["holder"].endswith("model.reducer") and s["device"] >= 0)
            r.equal("buckets", buckets, sorted(rank["buckets"]))
            r.equal("they are as large as all gradients", sum(buckets), rank["gradients"])
    finally:
        ranks.kill()


@case("torch")
def holders_natives(r):
    """What C++ alone holds: workspaces, which go when PyTorch is asked to clear them, and blocks of a graph's pool."""
    program = Program(python("torch_holders.py", "natives"))
    try:
        program.expect("ready")
        program.go()
        held = program.expect("held")
        found, cost = read(program.pid)
        r.note("cost", cost)
        program.go()
        cleared = program.expect("cleared")["workspaces"]
        r.equal("workspaces", [[s["address"], s["bytes"]] for s in found["storages"] if s["holder"] == "[workspace of cuBLAS]"], cleared)
        r.check("there are some", len(cleared) >= 2, len(cleared))
        pools = {address: pool for address, (_, pool) in held["blocks"]}
        graphs = [s["address"] for s in found["storages"] if s["holder"] == "[held by C++ alone, in a CUDA graph's pool]"]
        named = {s["address"] for s in found["storages"] if s["tensors"]} | {address for address, _ in cleared}
        r.equal("blocks of a graph's pool that no tensor has", graphs, sorted(address for address, pool in pools.items() if pool[0] and address not in named))
        r.equal("tensors", [address in named for address in held["python"]], [True, True])
        r.note("rows", [[s["holder"], s["bytes"]] for s in found["storages"]])
    finally:
        program.kill()


@case("torch")
def holders_forked(r):
    """A child that was forked after CUDA began does not have its parent's tensors."""
    program = Program(python("torch_holders.py", "forked"))
    try:
        program.expect("ready")
        program.go()
        v = program.expect("held")
        found, _ = read(program.pid)
        r.check("the parent's tensor", any(s["address"] == v["kept"] and s["holder"] == "kept" for s in found["storages"]), found["storages"])
        of_child = subprocess.run([TOOL, "holders", "-p", str(v["child"])], capture_output=True, text=True)
        r.check("the child is refused", of_child.returncode and f"those of process {program.pid}, which forked it" in of_child.stderr, of_child.stderr)
        program.go()
    finally:
        program.kill()


@case("torch", alone=True)
def holders_objects(r):
    """What a reading of 500,000 objects takes."""
    for tensors in "0", "100000":
        found, program = checked(r, "objects", "500000", tensors)
        try:
            costs, tables = [read(program.pid)[1] for _ in range(5)], [table(program.pid) for _ in range(5)]
        finally:
            program.kill()
        r.note(f"{tensors} tensors: costs as JSON; seconds and MiB as text", [costs, tables])
        r.check("objects", found["objects"] >= 500_000, found["objects"])
        r.check("blocks", found["allocators"][0]["blocks"] >= int(tensors), found["allocators"][0]["blocks"])
        if tensors == "0":
            core = statistics.median(x["core"] for x in costs)
            r.check("a reading takes at most 0.5 s of one core", core <= 0.5, f"median {core} s")
        seconds, peak = statistics.median(x[0] for x in tables), max(x[1] for x in tables)
        r.check(f"an answer within 2 s, with {tensors} tensors", seconds <= 2, f"median {seconds} s")
        r.check("and 100 MiB at its peak, beside what the command has anyway", peak - OWN <= 100, f"{peak} MiB, {OWN} of them anyway")


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
            sizes = dict(truth["storages"])
            ends = {hex(a): n - sizes[a] for a, n in truth["blocks"] if a in sizes and n - sizes[a] >= 512}
            r.note(f"{what}: what blocks have beyond their tensors, and blocks without a tensor", [ends, [[hex(a), n] for a, n in truth["blocks"] if a not in sizes]])
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


BETWEEN = 5  # seconds between two readings


def shapes(found):
    """Rows of the table by shape."""
    return {f"{x['shape']} {x['dtype']} {x['class']}": [x["storages"], x["bytes"]] for x in found["rows"] or []}


@case("torch", "torchvision")
def holders_shapes(r):
    """The table by shape, and what came and went, of a program that has no call of the tool."""
    program = Program(python("torch_tables.py", "shapes"))
    try:
        program.expect("ready")
        program.go()
        before = program.expect("before")
        r.equal("rows before", before["shapes"], {})
        for name, mib in ("model", 76.4), ("three", 466.4), ("five", 1066.4), ("moved", 586.4):
            with concurrent.futures.ThreadPoolExecutor() as pool:
                said = pool.submit(read, program.pid, "--by", "shape", "--again", f"{BETWEEN}s")
                time.sleep(BETWEEN / 2)
                begin = time.monotonic_ns()
                program.go()
                after = program.expect(name)
                end = time.monotonic_ns()
                change, _ = said.result()
            r.check(f"the readings lie around {name}", change["end_ns"] - change["between_ns"] < begin and change["begin_ns"] > end,
                    [(x - begin) / 1e9 for x in (change["end_ns"] - change["between_ns"], end, change["begin_ns"])])
            was, now = before["shapes"], after["shapes"]
            differs = {key: [b - a for a, b in zip(was.get(key, (0, 0)), now.get(key, (0, 0)))] for key in {*was, *now}}
            r.equal(f"what came and went with {name}", shapes(change), {key: x for key, x in differs.items() if x != [0, 0]})
            found, cost = read(program.pid, "--by", "shape")
            r.equal(f"rows at {name}", shapes(found), now)
            r.note("cost", cost)
            r.equal(f"MiB of all tensors at {name}", round(found["bytes"] / (1 << 20), 1), mib)
            r.note("allocated, with what blocks have beyond their tensors", after["allocated"])
            before = after
    finally:
        program.kill()


@case("torch")
def holders_parameters(r):
    """The table by parameter of a recommender: each name, its gradient and its optimizer's state."""
    program = Program(python("torch_tables.py", "parameters"))
    try:
        program.expect("ready")
        program.go()
        truth = program.expect("trained")
        storages = read(program.pid)[0]["storages"]
        r.note("gradients", [[hex(s["address"]), s["bytes"], s["holder"], s.get("more")] for s in storages if s["role"] == "gradient"])
        found, cost = read(program.pid, "--by", "parameter")
        r.note("cost", cost)
        rows = {x["parameter"].removeprefix("model."): [x["parameter_bytes"], x["gradient_bytes"], x["optimizer_state_bytes"]]
                for x in found["rows"] if not x["parameter"].startswith("[")}
        for name, want in truth["parameters"].items():
            r.equal(name, rows.pop(name, None), want)
        r.equal("other rows", rows, {})
        for i, what in enumerate(("weights", "gradients", "optimizer state")):
            r.note(f"{what}, MB", round(sum(x[i] for x in truth["parameters"].values()) / 1e6, 1))
        r.note("other rows, MB", {x["parameter"]: round(x["other_bytes"] / 1e6, 1) for x in found["rows"] if x["other_bytes"]})
        total = sum(n for x in found["rows"] for key, n in x.items() if key.endswith("_bytes"))
        r.equal("sum of the rows, and bytes that were found", total, found["bytes"])
        r.note("allocated, without ends of blocks", [truth["allocated"], found["bytes"]])
    finally:
        program.kill()


KEPT = ("parameter", "buffer", "gradient", "optimizer_state")  # by the heap: made by no forward


def modules(r, what):
    """Bytes that each module's forward left, by its path, beside what hooks say in a second program."""
    hooked = Program(python("torch_modules.py", what, "truth"))
    try:
        hooked.expect("ready")
        hooked.go()
        with traced(r, python("torch_modules.py", what), flags=TENSORS + ("--holders", "1h")) as t:
            t.at("warm")
            t.go()
            _, s = t.at("forward")
            found, rest = {}, 0
            for x in s.samples:
                labels, n = x["labels"], x["values"]["inuse_bytes"]
                if labels["kind"] != "tensor" or not n or labels.get("category_from") == "heap" and labels["category"] in KEPT:
                    continue
                path = plain(labels.get("module_path", ""))
                if path == "model" or path.startswith("model."):
                    found[path[len("model."):]] = found.get(path[len("model."):], 0) + n
                else:
                    rest += n
                    if path:
                        r.note("a path of no module of the model", [path, n])
            hooked.expect("warm")
            hooked.go()
            truth = hooked.expect("forward")["modules"]
            hooked.go()
            equal = [path for path in truth if found.get(path) == truth[path]]
            r.note("paths whose bytes are equal", f"{len(equal)} of {len(truth)}")
            r.note("others: what the hooks say, and the trace", {path: [truth.get(path), found.get(path)] for path in {*truth, *found} if path not in equal})
            same = sum(min(n, found.get(path, 0)) for path, n in truth.items())
            r.check("bytes under the module that made them", same >= 0.99 * sum(truth.values()), f"{same} of {sum(truth.values())}")
            wrong = {path: n - truth.get(path, 0) for path, n in found.items() if n > truth.get(path, 0)}
            r.equal("bytes under another module", wrong, {})
            r.note("bytes without a path", rest)
            layers = [path for path in truth if re.fullmatch(r".*\.\d+\..*", path)]
            r.check("paths in numbered layers", len(layers) > 20, layers[:3])
            r.note("loss", t.finish().loss())
    finally:
        hooked.kill()


@case("torch", "transformers")
def modules_gpt2(r):
    modules(r, "gpt2")


@case("torch", "timm")
def modules_timm(r):
    modules(r, "timm")


@case("torch", "peft", "transformers")
def modules_peft(r):
    modules(r, "peft")


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


def arrays(r, program, framework):
    """Arrays by path with the address, size and shape that the program knows, and what none has any more."""
    try:
        program.expect("ready")
        program.go()
        v = program.expect("held")
        found, cost = read(program.pid, "--keys", "all")
        r.note("cost", cost)
        r.note(f"{framework}'s version", v["version"])
        r.equal("framework", found["framework"], framework)
        held = {s["address"]: s for s in found["storages"] or []}
        wrong = {}
        for path, want in v["truth"].items():
            s = held.get(want[0], {})
            known = [s.get(key) for key in ("address", "bytes", "shape", "dtype")]
            if known[:2] != want[:2] or s["holder"] == path and known[:len(want)] != want or path not in [s["holder"], *s.get("more", [])]:
                wrong[path] = [want, s]
        r.check("arrays by path, with address, size and shape", not wrong, f"{len(v['truth']) - len(wrong)} of {len(v['truth'])}, wrong {wrong}")
        r.equal("lost", {x["name"]: x["value"] for x in found["loss"] if x["value"]}, {})
        return v, found
    finally:
        program.kill()


@case("cupy")
def holders_cupy(r):
    v, found = arrays(r, Program(python("cupy_pool.py", "holders")), "CuPy")
    free = [s for s in found["storages"] if s["holder"] == "[free in CuPy's pool]"]
    r.equal("free blocks of the pool, and their bytes", [len(free), sum(s["bytes"] for s in free)], [v["free_blocks"], v["free"]])
    r.equal("bytes in use", found["bytes"] - sum(s["bytes"] for s in free), v["used"])
    plan = [[s["address"], s["bytes"]] for s in found["storages"] if s["holder"] == "plan"]
    r.equal("memory without an array", plan, [v["plan"]])


@case("numba")
def holders_numba(r):
    v, found = arrays(r, Program(python("numba_kernels.py", "holders")), "Numba")
    r.note("class of a pointer", v["pointer"])
    waits = [[s["address"], s["bytes"]] for s in found["storages"] if s["holder"] == "[waits for Numba to free it]"]
    r.equal("what waits to be freed", waits, sorted(v["waits"]))
    r.check("something waits", waits, len(waits))
