"""Suspends the process with the given PID as cuda-checkpoint does, and restores it."""
import ctypes
import sys

from checkpoint import checkpoint
from driver import call, cuda

pid = int(sys.argv[1])
args = (ctypes.c_char * 128)()  # no options; longer than the structure of any call
if not hasattr(cuda, "cuCheckpointProcessLock"):
    checkpoint("suspended", missing="cuCheckpointProcessLock of libcuda")
    sys.exit()
call("cuInit", 0)
call("cuCheckpointProcessLock", pid, args)
call("cuCheckpointProcessCheckpoint", pid, args)
checkpoint("suspended", missing="")
call("cuCheckpointProcessRestore", pid, args)
call("cuCheckpointProcessUnlock", pid, args)
checkpoint("restored")
