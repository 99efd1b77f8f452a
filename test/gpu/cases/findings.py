"""What is wrong with programs that have one fault each, and with those that have none."""
import re
import subprocess

from case import TENSORS, case, python, traced
from harness import TOOL, Program

HEAPS = (*TENSORS, "--holders", "2s")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
WITHIN = 0.02

# Rules whose sentence names a line of the program.
LINES = {"growth", "gathered", "plans", "no-backward", "optimizer-temporaries", "type-copy", "checkpoint", "workspaces", "second-gpu", "workers", "import"}


def shown(*args):
    """What a command prints, on one line."""
    return " ".join(subprocess.run([TOOL, *args], capture_output=True, text=True).stdout.split())


def recorded(t, name):
    """What the program says where it waits, and the findings there, as pairs of rule and sentence. It then ends."""
    v = t.program.expect(name)
    t.tracer.stop()
    return v, t.tracer.findings()


def found(r, program, rule, flags=HEAPS, ranks=0):
    """The first finding on the first screen is of the rule, with the line and the bytes that the program knows."""
    with traced(r, ["findings.py", program] if ranks else python("findings.py", program), flags=flags, ranks=ranks) as t:
        v, findings = recorded(t, "wrong")
        v = v["ranks"][0] if ranks else v
        run = t.tracer.recording
    r.note("the program says", {k: x for k, x in v.items() if k not in ("name", "processes")})
    own = [says for name, says in findings if name == rule]
    r.check("a finding of the rule", bool(own), shown("check", run, "--no-finding", rule, "--format", "text"))
    screen = shown("report", run)
    first = screen.partition("What is wrong ")[2]
    r.check("it comes first on the first screen", bool(own) and first.startswith(own[0]), first[:300])
    if not own:
        return
    figures = [float(n) * UNITS[unit] for n, unit in re.findall(r"([\d.]+) ([KMG]iB|B)\b", own[0])]
    off = min((abs(x - v["bytes"]) / max(v["bytes"], 1) for x in figures), default=1)
    r.check("its bytes", off <= WITHIN, f"{off:.2%} off {v['bytes']}: {own[0]}")
    place = v.get("place", f"findings.py:{v['line']}")
    if rule in LINES:
        r.check("its line", re.search(re.escape(place) + r"\b", own[0]) is not None, f"{place}: {own[0]}")
    for x in v["names"]:
        r.check(f"it names {x}", x in own[0], own[0])


def register(program, rule=None, needs=(), gpus=1, flags=HEAPS, ranks=0):
    def run(r):
        found(r, program, rule or program, flags, ranks)
    run.__name__ = "found_" + program.replace("-", "_")
    case("torch", *needs, gpus=gpus)(run)


for name in ("growth", "old-graph", "collected-graphs", "no-backward", "small-view", "hook", "traceback", "second-copy", "frozen-copy", "cycle",
             "waiting", "graph-pools", "fragmentation", "optimizer-temporaries", "type-copy", "checkpoint", "workspaces", "workers", "import", "gathered", "plans", "buckets",
             "idle-module", "stale-gradients", "orphan"):
    register(name)
register("cycle-graph", "cycle")
register("evaluation-graph", "no-backward")
register("checkpoint-eval", "checkpoint", needs=["transformers"])
register("second-gpu", gpus=2)
register("communicators", gpus=2, ranks=2)
register("import-jax", "import", needs=["jax"], flags=())


def healthy(r, name):
    """Nothing is found in a program that has no fault, but for a setting of the allocator that saves what
    is said: the program is run under it."""
    argv = python("findings.py", "healthy", name)
    with traced(r, argv, flags=HEAPS) as t:
        v, findings = recorded(t, "right")
        run = t.tracer.recording
    for rule, says in [x for x in findings if x[0] in ("fragmentation", "setting")]:
        findings.remove((rule, says))
        found = re.search(r"With \S+ PyTorch would have reserved ([\d.]+) ([KMG]iB) .*PYTORCH_CUDA_ALLOC_CONF=(\S+) ", says)
        r.check("it says what a setting saves", found is not None, says)
        if found:
            said = float(found[1]) * UNITS[found[2]]
            other = Program(argv, {"PYTORCH_CUDA_ALLOC_CONF": found[3]})
            try:
                other.expect("ready")
                other.go()
                real = other.expect("right")["reserved"]
            finally:
                other.kill()
            r.check(f"reserved under {found[3]}, instead of {v['reserved']}", abs(said - real) <= WITHIN * v["reserved"], f"{real}: {says}")
    r.equal("other findings", findings, [])
    r.note("looked for", shown("check", run, "--no-finding", "all", "--format", "text")[:3000])


def register_healthy(name):
    def run(r):
        healthy(r, name)
    run.__name__ = "healthy_" + name
    case("torch")(run)


for name in ("plain", "mixed", "accumulation", "recurrent", "evaluation", "recomputing", "generation", "loader", "prefetching", "episodes", "adversarial"):
    register_healthy(name)
