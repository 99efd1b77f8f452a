"""The agent beside a training job: what it takes, what it says, and what it keeps."""
import glob
import json
import os
import pickle
import statistics
import subprocess
import threading
import time

from case import case, python
from harness import TOOL, Agent, Program, gpu_used
from checkpoint import held  # as the programs read NVML

from .cost import MOST, ratios

MINUTES = 5
PAIRS = 6
MODEL = "8192", "2048", "12", "16"  # its step is bound by the GPU, and takes as long each time


class Scraped(Agent):
    """An agent whose metrics are compared with NVML each second, where NVML says the same before and after."""

    def __init__(self, out, pids, seen):
        super().__init__(out, "--per-process-metrics", "10")
        self.pids, self.seen, self.over = pids, seen, threading.Event()
        self.scraper = threading.Thread(target=self.scrape, daemon=True)
        self.scraper.start()

    def scrape(self):
        time.sleep(1)  # it has read NVML
        while not self.over.wait(1):
            before = self.nvml()
            begin = time.perf_counter()
            m = self.metrics()
            took = time.perf_counter() - begin
            if before == self.nvml():
                used = [m.get(f'gpumemtrace_gpu_used_bytes{{gpu="{i}"}}') for i in range(len(self.pids))]
                self.seen.append(([*used, *(self.of(m, i) for i in range(len(self.pids)))], before, took))

    def nvml(self):
        gpus = range(len(self.pids))
        return [*map(gpu_used, gpus), *(held(self.pids[i])["nvml"].get(str(i)) for i in gpus)]

    def of(self, m, i):
        """What the metrics say of the process on GPU i."""
        return sum(v for k, v in m.items() if k.startswith("gpumemtrace_process_held_bytes{") and f'pid="{self.pids[i]}"' in k and f'gpu="{i}"' in k)

    def stop(self):
        self.over.set()
        self.scraper.join()
        super().stop()


class Job:
    """A process of training steps on each of so many GPUs, which begin each block together."""

    def __init__(self, gpus):
        self.programs = [Program(python("torch_train.py", "blocks", *MODEL), {"CUDA_VISIBLE_DEVICES": str(i)}) for i in range(gpus)]
        self.pids = [p.pid for p in self.programs]

    def all(self, name, answer=""):
        said = [p.expect(name) for p in self.programs]
        for p in self.programs:
            p.go(answer)
        return said

    def block(self):
        """Milliseconds of its median step, the mean over the GPUs."""
        self.all("block")
        return statistics.mean(x["median_ms"] for x in self.all("time"))

    def kill(self):
        for p in self.programs:
            p.kill()


def beside(r, gpus):
    """Steps with an agent and without in turn; then with one for minutes, and without again."""
    seen, job, a = [], Job(gpus), None
    try:
        job.all("ready")
        job.all("trained")
        job.block()  # the first one warms up
        idle = [job.block() for _ in range(PAIRS + 2)]
        times = [job.block()]
        for _ in range(PAIRS):
            a = Scraped(r.path(), job.pids, seen)
            times.append(job.block())
            a.stop()
            times.append(job.block())
        before = [job.block() for _ in range(3)]
        a, begin, long = Scraped(r.path(), job.pids, seen), time.time(), []
        while time.time() < begin + 60 * MINUTES:
            long.append(job.block())
        with open(f"/proc/{a.process.pid}/stat") as f:
            ticks = f.read().rpartition(")")[2].split()[11:13]
        r.note("the agent took of a core", round(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") / (time.time() - begin), 4))
        for name, path in ("page.html", "/"), ("top.json", "/api/v1/top"), ("history.json", "/api/v1/history"), ("metrics.txt", "/metrics"):
            with open(os.path.join(r.path(), name), "w") as f:
                f.write(a.get(path))
        a.stop()
        after = [job.block() for _ in range(3)]
        job.all("block", "end")
    finally:
        job.kill()
        if a:
            a.process.kill()
    noise, with_it = ratios(idle), ratios(times)[::2]
    r.note("noise: ratios where nothing differs", [round(x, 4) for x in noise])
    r.note("ratios with an agent", [round(x, 4) for x in with_it])
    ratio = statistics.median(with_it)
    r.check(f"a step takes at most {MOST} times as long", ratio <= MOST, f"median {ratio:.4f} of {PAIRS}")
    r.note("ms of a step before the minutes, in them, after them", [[round(x, 3) for x in part] for part in (before, long, after)])
    ratio = statistics.median(long) / statistics.median(before + after)
    r.check(f"and in {MINUTES} minutes", ratio <= MOST, f"{ratio:.4f}: median of {len(long)} blocks to that of {len(before + after)} around them")
    r.check("scrapes while nothing changed", len(seen) > 60, len(seen))
    r.equal("bytes in the metrics, used of each GPU and held by its process, where NVML says otherwise", [x[:2] for x in seen if x[0] != x[1]], [])
    r.note("a scrape took, ms: median, longest", (round(1e3 * statistics.median(x[2] for x in seen), 1), round(1e3 * max(x[2] for x in seen), 1)))


@case("torch", alone=True)
def agent(r):
    beside(r, 1)


@case("torch", gpus=2, alone=True)
def agent_two(r):
    beside(r, 2)


@case("torch", gpus=4, alone=True)
def agent_four(r):
    beside(r, 4)


@case("torch", alone=True)
def agent_oom(r):
    """A process runs out of memory under an agent that is killed soon after: its recording has it."""
    place = r.path("-recordings")
    p, a = Program(python("torch_oom.py")), None
    try:
        p.expect("ready")
        a = Agent(r.path(), "--record", place)
        p.go()
        p.expect("failed")
        time.sleep(2)  # twice what a crash may lose
        listed = json.loads(a.get("/api/v1/oom"))
        a.process.kill()
        a.process.wait()
    finally:
        p.kill()
        if a:
            a.process.kill()
    r.note("out-of-memory reports", listed)
    recordings = glob.glob(os.path.join(place, "*.gmt"))
    r.equal("recordings", len(recordings), 1)
    for shape in "json", "pickle":
        subprocess.run([TOOL, "convert", recordings[0], "--at", "end", "-o", r.path("." + shape), "-q", "--force"], check=True)
    with open(r.path(".json")) as f:
        process = next(x for x in json.load(f)["processes"] if x["pid"] == p.pid)
    r.check("the recording has the failure", process["out_of_memory"] > 0, process["out_of_memory"])
    r.check("and what the process held then", process["inuse_bytes"] >= 3 << 30, process["inuse_bytes"])
    with open(r.path(".pickle"), "rb") as f:
        events = [e for trace in pickle.load(f)["device_traces"] for e in trace if e["action"] == "oom"]
    r.check("PyTorch's viewer is told of it", events, [e["size"] for e in events])
