"""Starts a program and gpumemtrace on it, and reads what both say."""
import functools
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "programs"))
from checkpoint import held  # noqa: E402  (the programs read NVML with the same)

TOOL = os.path.join(HERE, "..", "..", "bin", "gpumemtrace")
PATIENCE = 120  # seconds for any one step

# Kinds of memory on a GPU: as CUDA's driver handed it out to the program, or as PyTorch's
# allocator did and did not; and as the kernel driver handed it out to CUDA's.
DEVICE = ("device", "array", "async", "vmm", "tensor", "cached")
DRIVER = ("driver", "backing", "pool", "context", "code", "local_memory", "stream", "event", "graph_exec", "shared",
          "video", "graphics", "opencl", "other")
SYSTEM = ("system",)  # of the machine's memory, for CUDA's driver itself


class Failed(Exception):
    pass


class NotHere(Exception):
    """What a case needs is not on this machine."""


class Program:
    """A program that prints CHECK lines and waits for an answer to each."""

    def __init__(self, argv, env=None):
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **(env or {})}, cwd=os.path.join(HERE, "programs"))
        self.pid = self.process.pid
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("CHECK "):
                self.lines.put(json.loads(line[6:]))
        self.lines.put(None)

    def expect(self, name):
        """What it says at its next checkpoint, which must have that name if one is given."""
        try:
            values = self.lines.get(timeout=PATIENCE)
        except queue.Empty:
            values = None
        if values is None or name not in (None, values["name"]):
            raise Failed(f"the program said {values}, not {name!r}")
        values.setdefault("processes", [held(self.pid)])  # it waits: what it holds does not change
        return values

    def go(self, answer=""):
        self.process.stdin.write(answer + "\n")
        self.process.stdin.flush()

    def wait(self):
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def kill(self):
        """Ends it, with all processes that it started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Ranks:
    """The ranks that torchrun starts of one program, each with checkpoints of its own."""

    def __init__(self, argv, n, place, env=None):
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        self.place, self.n, self.at = place, n, None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", *argv],
            stdout=subprocess.DEVNULL, env={**os.environ, **(env or {}), "GPUMEMTRACE_PLACE": place}, cwd=os.path.join(HERE, "programs"))
        self.pid = self.process.pid

    def expect(self, name):
        ranks = []
        for rank in range(self.n):
            path = os.path.join(self.place, f"{name}.{rank}")
            wait_for(path, self.process, "torchrun")
            with open(path) as f:
                ranks.append(json.load(f))
        self.at = name
        return {"name": name, "ranks": ranks, "processes": [p for r in ranks for p in r["processes"]]}

    def go(self):
        open(os.path.join(self.place, f"{self.at}.go"), "w").close()

    def wait(self):
        return self.process.wait(PATIENCE)

    def kill(self):
        """torchrun ends its ranks when it is told to end."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Tracer:
    """gpumemtrace on a process, on everyone for no PID, or on a command, ready when the constructor
    returns. A command has the streams, environment and folder given, and runs under what is ahead.

    It also records, and what is converted of the recording must be what it wrote."""

    def __init__(self, pid, out, *flags, record=True, command=(), ahead=(), tool=TOOL, **popen):
        shutil.rmtree(out, ignore_errors=True)  # no file of an earlier trace is taken for one of this
        os.makedirs(out)
        self.out, self.n, self.recording = out, 0, os.path.join(out, "p.gmt") if record else None
        self.shape = [x for flag, value in zip(flags, (*flags[1:], None)) if flag == "--native" for x in (flag, value)]
        ready = os.path.join(out, "ready")
        begin = time.perf_counter()
        self.stderr = open(os.path.join(out, "stderr"), "w")
        target = [] if command else ["-a"] if pid is None else ["-p", str(pid)]
        self.process = subprocess.Popen(
            [*ahead, tool, *target, "-o", os.path.join(out, "p.json"), "--force", "--ready-file", ready,
             *(["--record", self.recording] if record else []), *flags, *(["--", *command] if command else [])],
            stderr=self.stderr, **popen)
        wait_for(ready, self.process)
        self.attach_seconds = time.perf_counter() - begin

    def snapshot(self):
        """Everything known now, as the JSON output has it."""
        self.n += 1
        path = os.path.join(self.out, f"p.{self.n:06d}.json")
        time.sleep(0.2)  # longer than an event may wait for the reader
        self.process.send_signal(signal.SIGUSR1)
        wait_for(path, self.process)
        with open(path) as f:
            return Snapshot(json.load(f))

    def rss(self, field):
        """VmRSS or VmHWM in bytes, proc(5)."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(l.split()[1]) << 10 for l in f if l.startswith(field))

    def stop(self):
        """Ctrl-C, and the final profile."""
        self.process.send_signal(signal.SIGINT)
        return self.finish()

    def finish(self):
        code = self.process.wait(PATIENCE)
        self.stderr.close()
        if code != 0:
            with open(self.stderr.name) as f:
                raise Failed(f"gpumemtrace ended with {code}: {f.read()}")
        self.replay()
        for rule, says in self.findings():
            print(f"       finding: {rule}: {says}", flush=True)
        with open(os.path.join(self.out, "p.json")) as f:
            return Snapshot(json.load(f))

    def findings(self):
        """What is wrong as the recording has it, the most bytes first: pairs of a rule and its sentences."""
        if self.recording is None:
            return []
        done = subprocess.run([TOOL, "check", self.recording, "--no-finding", "all", "--format", "text"], capture_output=True, text=True)
        if not done.stdout:
            return [("check", f"ended with {done.returncode}: {done.stderr}")]
        return [tuple(" ".join(line.split()[1:]).split(": ", 1)) for line in done.stdout.splitlines() if line.startswith("failed ")]

    def at(self, moment):
        """What the recording shows at a moment, once the trace has ended."""
        path = os.path.join(self.out, "at.json")
        subprocess.run([TOOL, "convert", self.recording, "-q", "--force", "-o", path, "--at", moment, *self.shape], check=True)
        with open(path) as f:
            return Snapshot(json.load(f))

    def replay(self):
        """Converts the recording at the moment of each profile, and compares."""
        if self.recording is None:
            return
        for name in ["p.json", *(f"p.{i:06d}.json" for i in range(1, self.n + 1))]:
            live, again = os.path.join(self.out, name), os.path.join(self.out, "again.json")
            with open(live) as f:
                live = json.load(f)
            at = "end" if name == "p.json" else f"{live['meta']['duration_ns']}ns"
            subprocess.run([TOOL, "convert", self.recording, "-q", "--force", "-o", again, "--at", at, *self.shape], check=True)
            with open(again) as f:
                again = json.load(f)
            for data in live, again:  # rows have no order, and the end of a recording knows better what tensors were for
                for key in "moment", "peaks":  # which moment is shown, and why
                    data["meta"].pop(key, None)
                if at != "end":
                    data["samples"] = without_categories(data.get("samples") or [])
                    for row in data.get("live") or []:
                        del row["sample"]
                data["live"] = sorted(data.get("live") or [], key=lambda row: sorted(row.items()))
            if live != again:
                raise Failed(f"the recording differs from {name} in {[k for k in live if live[k] != again.get(k)]}")
        print(f"       the recording, {os.path.getsize(self.recording)} bytes, gives all {self.n + 1} profiles again", flush=True)


def without_categories(samples):
    """Adds up the samples that differ in their category alone."""
    sums = {}
    for s in samples:
        key = json.dumps([s["stack"], {k: v for k, v in s["labels"].items() if k != "category"}], sort_keys=True)
        values = sums.setdefault(key, {})
        for k, v in s["values"].items():
            values[k] = values.get(k, 0) + v
    return sorted(sums.items())


class Agent:
    """gpumemtrace agent, ready when the constructor returns."""

    def __init__(self, out, *flags):
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.stderr = open(os.path.join(out, "stderr"), "w")
        self.process = subprocess.Popen([TOOL, "agent", "--socket", "off", "--listen", self.url[len("http://"):], "--insecure", "--interval", "1s", *flags], stderr=self.stderr)
        end = time.time() + PATIENCE
        while True:
            try:
                self.get("/readyz")
                return
            except OSError as e:  # urllib's errors are
                if self.process.poll() is not None or time.time() > end:
                    raise Failed(f"the agent is not ready: {e}") from e
                time.sleep(0.05)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def metrics(self):
        """The values by name and labels as they are written: 'name{label="value"}'."""
        lines = (line.rpartition(" ") for line in self.get("/metrics").splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def stop(self):
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        self.stderr.close()
        if code != 0:
            with open(self.stderr.name) as f:
                raise Failed(f"the agent ended with {code}: {f.read()}")


def wait_for(path, process, what="gpumemtrace"):
    end = time.time() + PATIENCE
    while not os.path.exists(path):
        if process.poll() is not None:
            raise Failed(f"{what} ended with {process.returncode} before {os.path.basename(path)} was there")
        if time.time() > end:
            raise Failed(f"{os.path.basename(path)} did not come")
        time.sleep(0.002)


ROOTS = {"_start", "clone", "clone3", "__clone", "__clone3", "thread_start"}

# Prints what a stack of a main thread and one of another end with in libc.
ENDS = """
import ctypes, json, threading
def ends():
    libc, stack = ctypes.CDLL("libc.so.6"), (ctypes.c_void_p * 256)()
    n = libc.backtrace(stack, 256)
    with open("/proc/self/maps") as f:
        maps = [line.split() for line in f if line.rstrip().endswith("/libc.so.6")]
    low, high = int(maps[0][0].split("-")[0], 16), int(maps[-1][0].split("-")[1], 16)
    found.update(a - low for a in stack[max(0, n - 3):n] if a and low <= a < high)
found = set()
thread = threading.Thread(target=ends)
thread.start()
thread.join()
ends()
print(json.dumps(sorted(found)))
"""


@functools.cache
def libc_roots():
    """What the root of a whole stack is called where libc has no names for where threads begin."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=True)
    return {f"libc.so.6+{at:#x}" for offset in json.loads(done.stdout) for at in (offset, offset - 1)}


class Snapshot:
    def __init__(self, data):
        self.data = data
        self.samples = data["samples"]

    def sum(self, value="inuse_bytes", where=lambda sample: True, **labels):
        return sum(s["values"][value] for s in self.samples
                   if where(s) and all(s["labels"].get(k) in (v if isinstance(v, tuple) else (v,)) for k, v in labels.items()))

    def device(self, value="inuse_bytes", where=lambda sample: True, **labels):
        return self.sum(value, where, **{"kind": DEVICE, **labels})

    def asked(self, value="inuse_bytes", **labels):
        """Of all kinds that programs ask for, on GPUs or not."""
        return self.sum(value, lambda s: s["labels"]["kind"] not in DRIVER + SYSTEM, **labels)

    def by(self, label, value="inuse_bytes"):
        out = {}
        for s in self.samples:
            key = s["labels"].get(label, "")
            out[key] = out.get(key, 0) + s["values"][value]
        return {k: v for k, v in out.items() if v}

    def complete(self, driver=False):
        """Allocation calls, failed ones too, whose stack is whole, and all of them; or with driver the
        calls in which the kernel driver handed memory out for itself."""
        whole, cut = self.stacks(driver)
        return whole, whole + sum(cut.values())

    def stacks(self, driver=False):
        """Of the same calls: how many have a stack that reaches where its thread began and lacks no
        frame in between, and the others by what is wrong with theirs."""
        whole, cut = 0, {}
        for s in self.samples:
            n = s["values"]["alloc_objects"] + s["values"]["failed_objects"]
            if (s["labels"]["kind"] in DRIVER + SYSTEM) != driver or not n:
                continue
            names = [line["function"] for line in self.frames(s)]
            lack = next((x for x in names if x.startswith("[truncated")), None)
            # Python's last frames come after the root where no native frame stands for them.
            if lack is None and any(x in ROOTS or x in libc_roots() for x in names):
                whole += n
                continue
            why = lack or "ends at " + " < ".join(names[-3:])
            cut[why] = cut.get(why, 0) + n
        return whole, cut

    def frames(self, sample):
        for index in sample["stack"]:
            for line in self.data["locations"][index]["lines"]:
                yield line

    def loss(self):
        return {c["name"]: c["value"] for c in self.data["loss"] if c["value"]}

    def process(self, pid):
        return next(p for p in self.data["processes"] if p["pid"] == pid)

    def account(self, pid, gpu):
        return next((a for a in self.data["accounts"] if a["pid"] == pid and a["gpu"] == str(gpu)), None)

    def lines(self, pid, gpu):
        """Bytes of an account by the names of its lines."""
        return {x["name"]: x["bytes"] for x in (self.account(pid, gpu) or {"lines": []})["lines"]}


def children(pid):
    """The processes whose parent is pid."""
    out = []
    for x in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{x}/stat") as f:
                if int(f.read().rpartition(")")[2].split()[1]) == pid:
                    out.append(int(x))
        except OSError:
            pass
    return out


def gpu_count():
    import pynvml as n
    n.nvmlInit()
    return n.nvmlDeviceGetCount()


def gpu_used(gpu):
    """Bytes in use on a whole GPU, by its index, without what the driver reserves, as nvidia-smi shows it."""
    import pynvml as n
    n.nvmlInit()
    return n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(gpu), version=n.nvmlMemory_v2).used


def nvcc(source, target):
    """Builds a program with a static libcudart."""
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    subprocess.run([compiler, "-cudart", "static", "-O2", "-g", "-o", target, source, "-lcuda",
                    "-L/usr/local/cuda/lib64/stubs"], check=True)
