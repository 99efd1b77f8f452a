"""What a case is, what it reports, and how it has a program traced."""
import contextlib
import os
import sys

import accounts
from harness import DEVICE, HERE, Program, Ranks, Tracer

CASES = {}  # by name, in the order of their running


class Case:
    """A function that checks a program, and what it needs: Python modules, GPUs, and, for
    what measures times or takes most of a GPU, that no other case runs beside it."""

    def __init__(self, run, needs, gpus, alone):
        self.run, self.needs, self.gpus, self.alone = run, needs, gpus, alone


def case(*needs, gpus=1, alone=False):
    def register(f):
        CASES[f.__name__] = Case(f, needs, gpus, alone)
        return f
    return register


class Report:
    """Checks of one case; a failed one does not stop it."""

    def __init__(self, name, out):
        self.name, self.out, self.failed, self.count = name, out, 0, 0

    def path(self, suffix=""):
        """A file or folder for the case alone."""
        return os.path.join(self.out, self.name + suffix)

    def equal(self, what, got, want):
        self.check(what, got == want, f"{got} == {want}" if got == want else f"{got}, want {want}")

    def check(self, what, ok, detail=""):
        self.count += 1
        self.failed += not ok
        print(f"  {'ok  ' if ok else 'FAIL'} {what}: {detail}", flush=True)

    def note(self, what, value):
        print(f"       {what}: {value}", flush=True)


TENSORS = ("--tensors",)
NATIVE = ("--native", "all")  # for whole: no frame of a stack is folded away


def whole(r, s, what=""):
    """Holds how many allocation calls of a snapshot have a whole stack against what must:
    99.9 %, or 99 % of less than a thousand. It says why the others have none."""
    calls, cut = s.stacks()
    total = calls + sum(cut.values())
    r.check(f"whole stacks{what}", 0 < total and calls >= (0.999 if total >= 1000 else 0.99) * total, f"complete {calls}/{total}")
    for why, n in sorted(cut.items(), key=lambda x: -x[1]):
        r.note(f"{n} calls whose stack", why)
    for note in s.data["notes"]:
        if "different stacks" in note or note.startswith("stacks:"):
            r.note("stacks that were taken", note)
    lost = {k: n for k, n in s.loss().items() if k.startswith("stack")}
    if lost:
        r.note("stacks lost", lost)
    drivers, rest = s.stacks(driver=True)
    r.note("of what the driver took for itself", f"complete {drivers}/{drivers + sum(rest.values())} {rest or ''}")


def owned(r, s, *owners):
    """Holds who allocated on GPUs against who may."""
    others = {}
    for x in s.samples:
        if x["labels"]["kind"] in DEVICE and x["labels"].get("owner") not in owners:
            name = x["labels"].get("owner")
            others[name] = others.get(name, 0) + x["values"]["alloc_bytes"]
    r.equal(f"bytes of owners other than {', '.join(owners)}", others, {})


def python(name, *args):
    return [sys.executable, os.path.join(HERE, "programs", name), *args]


class Traced:
    """A program with gpumemtrace on it."""

    def __init__(self, report, program, tracer, late=False, flags=()):
        self.report, self.program, self.tracer, self.late = report, program, tracer, late
        self.tensors = "--tensors" in flags
        self.pid = program.pid
        self.unseen = False  # the kernel driver's calls are not watched

    def at(self, name):
        """What the program says at its next checkpoint, and the snapshot there, whose accounts
        are checked. The program waits there for go, wait or finish."""
        v = self.program.expect(name)
        return v, self.check(v)

    def check(self, v):
        """The snapshot at the checkpoint that the program said v at and waits at, its accounts checked."""
        s = self.tracer.snapshot()
        if not self.unseen:
            accounts.check(self.report, v, s, self.late)
        if self.tensors and not self.late:
            accounts.tensors(self.report, v, s)
        return s

    def go(self):
        self.program.go()

    def wait(self, code=0):
        """Lets the program end; its code must be that given."""
        self.program.go()
        self.report.equal("the program's exit code", self.program.wait(), code)

    def finish(self, code=0):
        """Lets the program end, and returns the final profile."""
        self.wait(code)
        s = self.tracer.finish()
        accounts.losses(self.report, s, self.late)
        return s


@contextlib.contextmanager
def traced(r, argv, env=None, flags=(), ranks=0, suffix=""):
    """A program that waits before its first CUDA call until gpumemtrace is on it, or so many
    ranks of it under torchrun."""
    program = Ranks(argv, ranks, r.path(suffix + "-place"), env) if ranks else Program(argv, env)
    tracer = None
    try:
        program.expect("ready")
        tracer = Tracer(program.pid, r.path(suffix), *flags)
        r.note("attach_seconds", round(tracer.attach_seconds, 3))
        program.go()
        yield Traced(r, program, tracer, flags=flags)
    finally:
        program.kill()
        if tracer:
            tracer.process.kill()
