"""Programs that others published, as they are. Their source is not here: a case takes those that are in PATH."""
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request

from case import case, owned, python, whole
from foreign import binary, foreign
from harness import PATIENCE, Failed, gpu_count

MIB = 1 << 20


def sample(r, name, *args, owners=("application",), env=None):
    """Compares a program's memory with NVML's figure at each line that it prints after that has
    changed, and what it allocated at its end."""
    with foreign(r, [binary(name), *args], env, suffix="-" + name) as p:
        for line in p.steps():
            p.check(line)
        s = p.finish()
    r.check(f"{name}: moments at which memory was compared", p.moments > 0, p.moments)
    whole(r, s, f" of {name}")
    owned(r, s, *owners)
    r.note("by owner", s.by("owner", "alloc_bytes"))
    r.equal(f"{name}: in use when it ended", s.asked(), 0)
    return s


def calls(s, kind):
    return s.sum("alloc_objects", kind=kind), s.sum("alloc_bytes", kind=kind)


@case()
def samples_vmm(r):
    """CUDA's samples of virtual memory: vectors that lie on all GPUs, and memory that another process imports."""
    binary("memMapIPCDrv")
    n, size = calls(sample(r, "vectorAddMMAP"), "vmm")
    r.check("three vectors, 2 MiB on each GPU that they lie on", n in (3, 3 * gpu_count()) and size == n * 2 * MIB, (n, size))
    n, size = calls(sample(r, "memMapIPCDrv"), "vmm")
    r.check("4 MiB for each process", n > 0 and size == n * 4 * MIB, (n, size))


@case()
def samples_ipc(r):
    """CUDA's samples of IPC: a process for each GPU works on memory of their parent's, from cudaMalloc and from a pool."""
    binary("streamOrderedAllocationIPC")
    for name, kind in ("simpleIPC", "device"), ("streamOrderedAllocationIPC", "async"):
        n, size = calls(sample(r, name), kind)
        r.check(f"{name}: 64 MiB on each GPU", n in range(1, gpu_count() + 1) and size == n * 64 * MIB, (n, size))


@case()
def samples_graphs(r):
    """CUDA's samples of graphs, with memory that is allocated in them and outside."""
    names = ("simpleCudaGraphs", "graphMemoryNodes", "graphMemoryFootprint", "jacobiCudaGraphs")
    for name in names:
        binary(name)
    for name in names:
        s = sample(r, name)
        r.note("calls and bytes of graphs, of the device", (calls(s, "graph"), calls(s, "device")))


@case()
def samples_streams(r):
    """CUDA's samples of streams, stream-ordered pools and many threads."""
    for name in ("streamOrderedAllocation", "UnifiedMemoryStreams", "threadMigration"):
        binary(name)
    s = sample(r, "simpleStreams")
    r.equal("simpleStreams: calls and bytes on the device", calls(s, "device"), (2, 64 * MIB + 4))
    s = sample(r, "streamOrderedAllocation")
    r.equal("streamOrderedAllocation: three vectors, 21 times", calls(s, "async"), (63, 63 * 4 * MIB))
    s = sample(r, "UnifiedMemoryStreams", owners=("application", "cublas"))
    r.equal("UnifiedMemoryStreams: three pieces of managed memory for each of 40 tasks", calls(s, "managed")[0], 120)
    s = sample(r, "threadMigration", "--numthreads=15")
    r.equal("threadMigration: 128 bytes for each of 15 threads a GPU", calls(s, "device"), (15 * gpu_count(), 15 * gpu_count() * 128))


@case(gpus=2)
def samples_peers(r):
    """CUDA's sample of a pool that two GPUs use."""
    s = sample(r, "streamOrderedAllocationP2P")
    for gpu in range(2):
        r.equal(f"bytes on GPU {gpu}", s.sum("alloc_bytes", kind="async", gpu=str(gpu)), 4 * MIB)


NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0"}


@case(gpus=2)
def nccl_tests(r):
    """NVIDIA's nccl-tests: both GPUs by one thread, and by a thread each."""
    binary("alltoall_perf")
    for name, *args in ("all_reduce_perf", "-t", "2", "-g", "1"), ("alltoall_perf", "-t", "1", "-g", "2"):
        with foreign(r, [binary(name), "-b", "1M", "-e", "128M", "-f", "8", "-n", "5", *args], NO_MULTICAST, suffix="-" + name) as p:
            most = {"0": 0, "1": 0}
            for line in p.steps():
                s = p.check(line)
                for gpu in most:
                    most[gpu] = max(most[gpu], s.device(gpu=gpu, where=lambda x: any(
                        "AllocateBuffs" in f["function"] for f in s.frames(x))))
            s = p.finish()
        r.check(f"{name}: moments at which memory was compared", p.moments > 0, p.moments)
        for gpu, held in most.items():
            r.equal(f"{name}: buffers to send, to receive and to compare on GPU {gpu}", held, 3 * 128 * MIB)
        whole(r, s, f" of {name}")
        owned(r, s, "nccl", "application")
        r.note("by owner", s.by("owner", "alloc_bytes"))
        r.note("on GPUs when it ended", s.device())


@case()
def gpu_burn(r):
    """gpu-burn: a process for each GPU, which multiplies matrices in 4,000 MB."""
    with foreign(r, [binary("gpu_burn"), "-m", "4000", "40"], quiet=True) as p:
        end = time.time() + PATIENCE
        while sum(sum(x["nvml"].values()) for x in p.read()) < gpu_count() * 4000 * MIB:
            if time.time() > end or p.tracer.process.poll() is not None:
                raise Failed("it does not take its memory")
            time.sleep(0.1)
        p.check("burning")
        r.equal("GPUs in use", len([x for x in p.read() if x["nvml"]]), gpu_count())
        s = p.finish()
    whole(r, s)
    owned(r, s, "application", "cublas")
    r.note("by owner", s.by("owner", "alloc_bytes"))


class Server:
    """llama.cpp's server with a model of random weights, and its HTTP API."""

    def __init__(self, r):
        self.model = r.path("-model.gguf")
        subprocess.run(python("random_model.py", self.model), check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.command = [binary("llama-server"), "-m", self.model, "--host", "127.0.0.1", "--port", str(self.port),
                        "-ngl", "99", "-c", "16384", "-np", "4"]

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout=PATIENCE) as answer:
            return json.load(answer)

    def ready(self, process):
        end = time.time() + PATIENCE
        while True:
            try:
                self.ask("/health")
                return
            except OSError as e:  # urllib's errors are; it answers 503 while it loads
                if process.poll() is not None or time.time() > end:
                    raise Failed(f"the server is not ready: {e}") from e
                time.sleep(0.1)

    def complete(self, words, n):
        """The number of tokens read and written. The letters keep the answer a text."""
        said = self.ask("/completion", {"prompt": "memory " * words, "n_predict": n, "ignore_eos": True, "cache_prompt": False,
                                        "grammar": "root ::= [a-z]+"})
        return said["tokens_evaluated"], said["tokens_predicted"]


@case()
def llama_server(r):
    """llama.cpp's server: weights, KV cache, its own pool of virtual memory, and requests by several threads."""
    binary("llama-server")
    server = Server(r)
    try:
        with foreign(r, server.command, quiet=True) as p:
            server.ready(p.tracer.process)
            s = p.check("ready")
            r.check("the weights are on the GPU", s.device(owner="llama.cpp") > os.path.getsize(server.model) * 0.9, s.by("owner"))
            r.note("tokens read and written", server.complete(10, 16))
            p.check("after a short request")
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                r.note("the same, by 16 requests", list(pool.map(lambda i: server.complete(100 + 25 * i, 32), range(16))))
            s = p.check("after 16 requests")
            r.check("its pool", s.sum(kind="vmm", owner="llama.cpp") > 0, s.by("kind"))
            owned(r, s, "llama.cpp", "cublas")
            os.kill(p.pid, signal.SIGTERM)
            s = p.finish()
        whole(r, s)
        owned(r, s, "llama.cpp", "cublas")
        r.note("on the GPU when it ended", s.device())
    finally:
        os.remove(server.model)
