"""Does what its input says, a line at a time."""
import ctypes
import gc
import os
import sys
import threading

lib = ctypes.CDLL(os.environ["LIBALLOC"])
p = ctypes.c_ulong()


def call(n):
    for _ in range(int(n)):
        lib.gm_test_alloc(ctypes.byref(p), ctypes.c_size_t(1))


def inner(code):
    return [c for c in code.co_consts if hasattr(c, "co_code")]


def free(n):
    """Frees code objects in each way, and returns where they were."""
    at = []
    for i in range(int(n)):
        # Alone.
        code = compile("0", "alone", "eval")
        at.append(id(code))
        del code
        # With the one around it.
        code = compile("def f(): pass", "inner", "exec")
        at += [id(code), id(inner(code)[0])]
        del code
        # With its function, of which the code object around it is gone.
        space = {}
        exec("def f(): pass", space)
        at.append(id(space["f"].__code__))
        del space["f"]
        # By the collector.
        space = {}
        exec("def f(): return f", space)
        at.append(id(space["f"].__code__))
        space["self"] = space
        del space
        gc.collect()
    return " ".join(map(hex, at))


def many(n):
    for _ in range(int(n)):
        compile("0", "many", "eval")


def thread(n):
    out = []
    t = threading.Thread(target=lambda: out.append(free(n)))
    t.start()
    t.join()
    return out[0]


def fork(n):
    child = os.fork()
    if child:
        return child
    sys.stdin = os.fdopen(os.open("/dev/null", os.O_RDONLY))
    free(n)
    os.kill(os.getpid(), 19)  # SIGSTOP
    os._exit(0)


def load(path):
    ctypes.CDLL(path, os.RTLD_LOCAL)


def execute(python):
    os.execv(python, [python, __file__])


def leave(n):
    """Ends the first thread; another one goes on."""
    threading.Thread(target=serve).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)


def serve():
    while True:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        what, arg = line.split()
        print("done", globals()[what](arg) or "", flush=True)


print("ready", flush=True)
serve()
