"""CUDA's multi-process service, by a daemon of the case's own."""
import contextlib
import os
import shutil
import subprocess
import tempfile
import time

from case import case, python, traced
from harness import NotHere, children, held

CONTROL = "nvidia-cuda-mps-control"


@contextlib.contextmanager
def daemon():
    """A control daemon with folders of its own, and the environment of its clients."""
    if shutil.which(CONTROL) is None:
        raise NotHere(f"no {CONTROL} here")
    place = tempfile.mkdtemp(prefix="mps")  # short: a socket's path has 107 bytes
    env = {"CUDA_MPS_PIPE_DIRECTORY": os.path.join(place, "pipe"), "CUDA_MPS_LOG_DIRECTORY": os.path.join(place, "log")}
    for folder in env.values():
        os.mkdir(folder)
    control = subprocess.Popen([CONTROL, "-f"], env={**os.environ, **env}, stdin=subprocess.DEVNULL)
    try:
        pipe, end = os.path.join(env["CUDA_MPS_PIPE_DIRECTORY"], "control"), time.time() + 10
        while not os.path.exists(pipe):
            if control.poll() is not None or time.time() > end:
                raise NotHere(f"{CONTROL} does not start here: {control.poll()}")
            time.sleep(0.05)
        yield control, env
    finally:
        stop(control, env)
        shutil.rmtree(place, ignore_errors=True)


def stop(control, env):
    """Ends the daemon and its servers: as it wants to be told, else by force."""
    if control.poll() is None:
        servers = children(control.pid)
        try:
            subprocess.run([CONTROL], input="quit -t 5\n", text=True, env={**os.environ, **env}, timeout=20)
            control.wait(20)
        except subprocess.TimeoutExpired:
            for pid in {*servers, *children(control.pid)}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            control.kill()
            control.wait()


def listed():
    """What NVML says of each process on the first GPU, by its list."""
    import pynvml as n
    n.nvmlInit()
    gpu = n.nvmlDeviceGetHandleByIndex(0)
    lists = {"compute": n.nvmlDeviceGetComputeRunningProcesses, "graphics": n.nvmlDeviceGetGraphicsRunningProcesses,
             "mps": n.nvmlDeviceGetMPSComputeRunningProcesses}
    return {name: {p.pid: p.usedGpuMemory for p in of(gpu)} for name, of in lists.items()}


@case(alone=True)
def mps(r):
    """Two clients: what NVML and the layer say of each, and that no difference goes without its counter."""
    with daemon() as (control, env), contextlib.ExitStack() as stack:
        clients = []
        for mib in 128, 256:
            t = stack.enter_context(traced(r, python("driver_calls.py", "client", str(mib)), env, suffix=f"-{mib}"))
            t.program.expect("held")
            clients.append((t, mib))
        r.note("servers", children(control.pid))
        r.note("NVML", listed())
        for t, mib in clients:
            s = t.tracer.snapshot()
            a = s.account(t.pid, 0)
            r.note(f"the account of the client of {mib} MiB", a)
            r.equal("tracked, MiB", s.device() >> 20, mib)
            said = held(t.pid)["nvml"].get("0") or listed()["mps"].get(t.pid)
            told = s.loss().get("driver_total_differs", 0)
            honest = a is not None and (said is None or a["total_bytes"] == said or told > 0)
            r.check("the total is NVML's, or the difference is counted", honest, f"NVML {said}, counter {told}")
        for t, _ in clients:
            t.wait()
            t.tracer.finish()
