"""Memory that one process gives to another in a file descriptor, and that outlives its owner there."""
import ctypes
import os
import socket
import sys

from checkpoint import checkpoint, held
from driver import MIB, AllocationProp, Location, call, retain

POSIX_FD = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
SIZES = [256, 3072, 2]  # MiB


class AccessDesc(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def mapped(handle, size):
    """Returns where the memory of a handle is now; the handle is no longer needed."""
    at, access = ctypes.c_uint64(), AccessDesc(Location(1, 0), 3)
    call("cuMemAddressReserve", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
    call("cuMemMap", at, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
    call("cuMemSetAccess", at, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
    call("cuMemRelease", handle)
    return at


def unmapped(at, size):
    call("cuMemUnmap", at, ctypes.c_size_t(size))
    call("cuMemAddressFree", at, ctypes.c_size_t(size))


def created(size):
    handle = ctypes.c_uint64()
    prop = AllocationProp(type=1, handle_types=POSIX_FD, location=Location(1, 0))
    call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_uint64(0))
    return handle


def owner(link):
    """With 'early' it lets go of the memory before the other process has it."""
    retain(0)
    handles = [created(mib * MIB) for mib in SIZES]
    for handle in handles:
        fd = ctypes.c_int()
        call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, POSIX_FD, ctypes.c_uint64(0))
        if "early" in sys.argv:
            call("cuMemRelease", handle)
        socket.send_fds(link, [b"m"], [fd.value])
        os.close(fd.value)
    at = [] if "early" in sys.argv else [mapped(h, mib * MIB) for h, mib in zip(handles, SIZES)]
    link.sendall(str(held()["nvml"]["0"]).rjust(20).encode())
    link.recv(1)
    for a, mib in zip(at[:-1], SIZES):
        unmapped(a, mib * MIB)
    link.sendall(str(held()["nvml"]["0"]).rjust(20).encode())
    link.recv(1)  # the end of the rest is the process's
    os._exit(0)


def main():
    checkpoint("ready")
    ours, theirs = socket.socketpair()
    other = os.fork()
    if other == 0:
        ours.close()
        owner(theirs)
    theirs.close()

    def of_owner():
        return {"pid": other, "nvml": {"0": int(ours.recv(20, socket.MSG_WAITALL))}}

    retain(0)
    for i in range(5):
        os.dup(0)  # the descriptors' numbers differ from the owner's
    at = []
    for mib in SIZES:
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
        handle = ctypes.c_uint64()
        call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), POSIX_FD)
        os.close(fd)
        at.append(mapped(handle, mib * MIB))
    checkpoint("shared", of_owner())
    ours.sendall(b"r")
    checkpoint("released", of_owner())
    ours.sendall(b"x")
    os.waitpid(other, 0)
    checkpoint("orphaned")
    for a, mib in zip(at, SIZES):
        unmapped(a, mib * MIB)
    checkpoint("freed")


if __name__ == "__main__":
    main()
