"""The agent beside a training job: what it takes, what it says, and what it keeps."""
import glob
import json
import os
import statistics
import subprocess
import threading
import time

from case import case, python
from harness import TOOL, Agent, Program, gpu_used
from checkpoint import held  # as the programs read NVML

from .cost import MOST, PAIRS, on_and_off, ratios

MINUTES = 5


class Scraped(Agent):
    """An agent whose metrics are compared with NVML each second, where NVML says the same before and after."""

    def __init__(self, out, pid, seen):
        super().__init__(out, "--per-process-metrics", "10")
        self.pid, self.seen, self.over = pid, seen, threading.Event()
        self.scraper = threading.Thread(target=self.scrape, daemon=True)
        self.scraper.start()

    def scrape(self):
        time.sleep(1)  # it has read NVML
        while not self.over.wait(1):
            before = gpu_used(0), held(self.pid)["nvml"].get("0")
            begin = time.perf_counter()
            m = self.metrics()
            took = time.perf_counter() - begin
            if before == (gpu_used(0), held(self.pid)["nvml"].get("0")):
                process = [v for k, v in m.items() if k.startswith("gpumemtrace_process_held_bytes{") and f'pid="{self.pid}"' in k and 'gpu="0"' in k]
                self.seen.append((m.get('gpumemtrace_gpu_used_bytes{gpu="0"}'), before[0], sum(process), before[1], took))

    def stop(self):
        self.over.set()
        self.scraper.join()
        super().stop()


@case("torch", alone=True)
def agent(r):
    """Steps with an agent and without in turn; then with one for minutes."""
    seen = []
    idle, times = on_and_off(r, {}, PAIRS, start=lambda pid: Scraped(r.path(), pid, seen))
    noise, with_it = ratios(idle), ratios(times)[::2]
    r.note("noise: ratios where nothing differs", [round(x, 4) for x in noise])
    r.note("ratios with an agent", [round(x, 4) for x in with_it])
    ratio = statistics.median(with_it)
    r.check(f"a step takes at most {MOST} times as long", ratio <= MOST, f"median {ratio:.4f} of {PAIRS}")

    p, a = Program(python("torch_train.py", "blocks")), None
    try:
        for name in "ready", "trained":
            p.expect(name)
            p.go()
        a = Scraped(r.path(), p.pid, seen)
        begin = time.time()
        while time.time() < begin + 60 * MINUTES:
            p.expect("block")
            p.go()
            p.expect("time")
            p.go()
        with open(f"/proc/{a.process.pid}/stat") as f:
            ticks = f.read().rpartition(")")[2].split()[11:13]
        r.note("the agent took of a core", round(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") / (time.time() - begin), 4))
        for name, path in ("page.html", "/"), ("top.json", "/api/v1/top"), ("history.json", "/api/v1/history"), ("metrics.txt", "/metrics"):
            with open(os.path.join(r.path(), name), "w") as f:
                f.write(a.get(path))
        a.stop()
        p.expect("block")
        p.go("end")
    finally:
        p.kill()
        if a:
            a.process.kill()
    r.check("scrapes while nothing changed", len(seen) > 60, len(seen))
    r.equal("used bytes of the GPU in the metrics, where NVML says otherwise", [x[:2] for x in seen if x[0] != x[1]], [])
    r.equal("held bytes of the process in the metrics, where NVML says otherwise", [x[2:4] for x in seen if x[2] != x[3]], [])
    r.note("a scrape took, ms: median, longest", (round(1e3 * statistics.median(x[4] for x in seen), 1), round(1e3 * max(x[4] for x in seen), 1)))


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
    for shape in "json", "memory_viz.json":
        subprocess.run([TOOL, "convert", recordings[0], "-o", r.path("." + shape), "-q", "--force"], check=True)
    with open(r.path(".json")) as f:
        process = next(x for x in json.load(f)["processes"] if x["pid"] == p.pid)
    r.check("the recording has the failure", process["out_of_memory"] > 0, process["out_of_memory"])
    r.check("and what the process held then", process["inuse_bytes"] >= 3 << 30, process["inuse_bytes"])
    with open(r.path(".memory_viz.json")) as f:
        events = [e for trace in json.load(f)["device_traces"] for e in trace if e["action"] == "oom"]
    r.check("PyTorch's viewer is told of it", events, [e["size"] for e in events])
