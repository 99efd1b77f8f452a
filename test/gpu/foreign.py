"""A program that knows nothing of the harness: traced from its first instruction, and held where it prints a line."""
import contextlib
import ctypes
import fcntl
import glob
import mmap
import os
import platform
import shutil
import signal
import subprocess
import termios
import time

import accounts
from case import NATIVE
from harness import PATIENCE, Failed, NotHere, Tracer, children, held

WRITE = {"x86_64": "1", "aarch64": "64"}  # write(2)'s number
STILL = 0.4  # seconds without a change in what NVML says
SPLICE_F_NONBLOCK = 2


def binary(name):
    """The path of a program, which is built elsewhere."""
    path = shutil.which(name)
    if path is None:
        raise NotHere(f"no {name} in PATH")
    return os.path.abspath(path)


class Lines:
    """A pipe with room for one line: who prints another waits until the first is taken."""

    def __init__(self):
        self.out, self.end = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)  # each write(2) takes a page of its own
        if fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE) != mmap.PAGESIZE:
            raise Failed("a pipe has room for more than one line")
        self.copy, self.into = os.pipe2(os.O_CLOEXEC)
        self.libc = ctypes.CDLL(None, use_errno=True)

    def full(self):
        waiting = bytearray(4)
        fcntl.ioctl(self.out, termios.FIONREAD, waiting)
        return any(waiting)

    def show(self):
        """The line, which stays."""
        if self.libc.tee(self.out, self.into, ctypes.c_size_t(mmap.PAGESIZE), SPLICE_F_NONBLOCK) <= 0:
            raise Failed(f"tee: {os.strerror(ctypes.get_errno())}")
        return os.read(self.copy, mmap.PAGESIZE).decode(errors="replace").strip()

    def take(self):
        os.read(self.out, mmap.PAGESIZE)

    def close(self):
        for fd in self.out, self.copy, self.into:
            os.close(fd)


def printing(pid):
    """Whether one of its threads is in a write to its standard output."""
    for path in glob.glob(f"/proc/{pid}/task/*/syscall"):
        with contextlib.suppress(OSError):
            with open(path) as f:
                if f.read().split()[:2] == [WRITE[platform.machine()], "0x1"]:
                    return True
    return False


class Foreign:
    """A command under gpumemtrace."""

    def __init__(self, report, tracer, lines):
        self.report, self.tracer, self.lines = report, tracer, lines
        self.pid, = children(tracer.process.pid)
        self.moments = 0  # at which it held memory that was compared

    def family(self):
        """The program and all processes that it started, and they."""
        pids = [self.pid]
        for pid in pids:
            pids += children(pid)
        return pids

    def read(self):
        """What NVML says of each of them."""
        return [held(pid) for pid in self.family()]

    def settled(self, seconds=STILL):
        """The same, once it has not changed for so long."""
        end, said, since = time.time() + PATIENCE, self.read(), time.time()
        while time.time() - since < seconds:
            time.sleep(0.05)
            now = self.read()
            if now != said:
                said, since = now, time.time()
            if time.time() > end:
                raise Failed("what it holds keeps changing")
        return said

    def check(self, name):
        """A snapshot while its memory does not change, its accounts checked."""
        for _ in range(5):
            said = self.settled()
            s = self.tracer.snapshot()
            if self.read() == said:
                break
        else:
            raise Failed(f"what it holds changes at {name!r}")
        self.moments += any(x["nvml"] for x in said)
        accounts.check(self.report, {"name": repr(name), "processes": said, "contexts": None}, s)
        return s

    def waits(self):
        """Waits until it waits to print a line, or has ended: whether it waits."""
        end, seen = time.time() + PATIENCE, 0
        while seen < 2:  # a write that has just had its line taken looks the same, but not twice
            if self.tracer.process.poll() is not None:
                return False
            if time.time() > end:
                raise Failed("it neither prints nor ends")
            seen = seen + 1 if self.lines.full() and any(map(printing, self.family())) else 0
            time.sleep(0.01)
        return True

    def steps(self):
        """Lets it run from line to line, and yields each line after which it holds other memory than
        at the last one yielded. It waits there to print the next line."""
        before = []
        while self.waits():
            if [x["nvml"] for x in self.read()] != before:
                yield self.lines.show()
                before = [x["nvml"] for x in self.read()]
            self.lines.take()

    def finish(self):
        """Waits for its end. Its exit code must be 0."""
        s = self.tracer.finish()
        accounts.losses(self.report, s)
        return s

    def kill(self):
        for pid in reversed(self.family()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            self.tracer.process.wait(20)  # it removes its probes
        except subprocess.TimeoutExpired:
            self.tracer.process.kill()
            self.tracer.process.wait()


@contextlib.contextmanager
def foreign(r, argv, env=None, flags=NATIVE, suffix="", quiet=False):
    """A command under gpumemtrace, in the folder of its program, where it may look for files. What it
    prints is for steps, or for nobody if it is to be quiet."""
    lines = Lines()
    program = None
    try:
        tracer = Tracer(None, r.path(suffix), *flags, command=argv, ahead=("stdbuf", "-oL"), stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL if quiet else lines.end, env={**os.environ, **(env or {})}, cwd=os.path.dirname(argv[0]))
        os.close(lines.end)
        program = Foreign(r, tracer, lines)
        yield program
    finally:
        if program and tracer.process.poll() is None:
            program.kill()
        lines.close()
