"""Calls the probed function, and writes down which Python frames each call has."""
import ctypes
import functools
import os
import sys
import threading

lib = ctypes.CDLL(os.environ["LIBALLOC"])
# All of C: the call adds no Python frame.
call = functools.partial(lib.gm_test_alloc, ctypes.byref(ctypes.c_ulong()), ctypes.c_size_t(1))
VERSION = sys.version_info[:2]
OFTEN = 40  # calls after which an instruction is specialised, of every CPython that does so

noted = []  # of each call: its thread, its case, its frames
now = ""  # the case that runs


def note():
    """Writes down the frames of the call that the caller makes next."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append((getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno))
        frame = frame.f_back
    noted.append((threading.get_native_id(), now, frames))


def leaf(*_):
    note(); call()
    return 0


def often(f, *args):
    for _ in range(OFTEN):
        f(*args)
