"""The live view beside a job: what scripts get of it, and what stands in a terminal."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

from case import TENSORS, case, python
from harness import PATIENCE, TOOL, Program, held, wait_for

LINES, COLUMNS = 40, 120


class Terminal:
    """gpumemtrace top in a terminal of its own."""

    def __init__(self, pid):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(TOOL, [TOOL, "top", "-p", str(pid), *TENSORS])
        self.text = b""
        self.size(LINES, COLUMNS)

    def size(self, lines, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self, seconds):
        """All that it has written, after so many seconds or its end."""
        end = time.time() + seconds
        while time.time() < end and select.select([self.fd], [], [], max(0, end - time.time()))[0]:
            try:
                part = os.read(self.fd, 1 << 16)
            except OSError:  # it has ended
                break
            self.text += part
        return self.text

    def until(self, pattern):
        end = time.time() + PATIENCE
        while not re.search(pattern, self.read(0.2)):
            if time.time() > end:
                return False
        return True

    def again(self):
        """The whole screen as it is now: what it writes in between is what changed alone."""
        self.text = b""
        self.size(LINES, COLUMNS - 1)
        return self.read(1)

    def quit(self):
        """Its exit code after q."""
        os.write(self.fd, b"q")
        self.read(5)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@case("torch")
def top(r):
    """Both at once on one process: each JSON document's bytes are NVML's, and so is what the screen says."""
    p, ready = Program(python("torch_train.py", "train")), r.path("-ready")
    t = screen = None
    try:
        p.expect("ready")
        t = subprocess.Popen([TOOL, "top", "-p", str(p.pid), *TENSORS, "--json", "--interval", "500ms", "--ready-file", ready, "--force"],
                             stdout=subprocess.PIPE, text=True)
        said = []
        threading.Thread(target=lambda: said.extend(t.stdout), daemon=True).start()
        wait_for(ready, t)
        screen = Terminal(p.pid)
        r.check("the screen has begun", screen.until(rb"gpumemtrace top"))
        time.sleep(1)  # its probes are on
        p.go()
        v = p.expect("trained")
        time.sleep(2)  # for the documents of that moment
        nvml = sum(held(p.pid)["nvml"].values())
        d = json.loads(said[-1])
        now = d["now"]
        process = next((x for of, x in zip(d["processes"], now["processes"]) if of["pid"] == p.pid), {})
        r.equal("bytes that the process holds", process.get("held_bytes"), nvml)
        r.equal("of that unexplained", process.get("unexplained_bytes"), 0)
        owner = next((x for x in now["owners"] if x["owner"] == "pytorch"), {})
        r.check("PyTorch is its largest owner", owner.get("inuse_bytes", 0) >= v["reserved"], now["owners"])
        r.check("a tensor's stack is the largest", d["samples"][0]["labels"]["kind"] in ("tensor", "cached"), now["stacks"][0]["text"])
        shown = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", screen.again()).decode()
        gib = f"holds {nvml / 2**30:.2f} GiB"
        r.check("the screen has that figure", gib in shown, gib)
        r.note("what it has taken of a core", round(now["own_cost"]["cpu_ns"] / d["meta"]["duration_ns"], 3))
        print(shown)
        r.equal("the screen's exit code", screen.quit(), 0)
        t.send_signal(signal.SIGINT)
        r.equal("exit code", t.wait(60), 0)
    finally:
        p.kill()
        if t and t.poll() is None:
            t.kill()
        if screen:
            try:
                os.kill(screen.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
