"""Numba: kernels with shared memory, a reduction, arrays that stay and arrays that go.

    numba_kernels.py [holders]
"""
import sys

from checkpoint import checkpoint

checkpoint("ready")  # its libraries are loaded while it is traced
import numpy as np  # noqa: E402

if not hasattr(np, "row_stack"):  # which Numba 0.6x looks for and NumPy 2.5 lacks
    np.row_stack = np.vstack
import numba  # noqa: E402
from numba import cuda, float32  # noqa: E402

TILE, N = 16, 1024


@cuda.jit
def multiply(a, b, c):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(N // TILE):
        left[i, j] = a[x, j + k * TILE]
        right[i, j] = b[i + k * TILE, y]
        cuda.syncthreads()
        for l in range(TILE):
            total += left[i, l] * right[l, j]
        cuda.syncthreads()
    c[x, y] = total


@cuda.jit
def count(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = i


@cuda.reduce
def total(a, b):
    return a + b


def holders():
    """Arrays that are held, and those that wait to be freed."""
    global rows, part
    rows = [cuda.device_array((N, 1 + i), np.float32) for i in range(9)]
    part = rows[0][100:200]
    queue = cuda.current_context().memory_manager.deallocations
    queue.clear()
    with cuda.defer_cleanup():
        del rows[5:]
        waits = [[int(getattr(handle, "value", handle)), int(size)] for dtor, handle, size in queue._cons]
        truth = {f"rows[{i}]": [int(a.gpu_data.device_ctypes_pointer.value), a.nbytes, list(a.shape)] for i, a in enumerate(rows)}
        checkpoint("held", version=numba.__version__, pointer=type(rows[0].gpu_data.device_pointer).__name__, truth=truth, waits=waits)


def main():
    if len(sys.argv) > 1:
        return holders()
    row = cuda.device_array(N, np.float32)
    count[N // 256, 256](row)
    a, b = (cuda.to_device(np.random.rand(N, N).astype(np.float32)) for _ in range(2))
    c = cuda.device_array((N, N), np.float32)
    for _ in range(20):
        gone = cuda.device_array((N, N), np.float32)
        multiply[(N // TILE, N // TILE), (TILE, TILE)](a, b, gone)
        multiply[(N // TILE, N // TILE), (TILE, TILE)](gone, b, c)
    del gone
    print(float(total(row)), float(total(c.ravel())), flush=True)
    cuda.synchronize()
    cuda.current_context().memory_manager.deallocations.clear()  # it frees some time later
    checkpoint("computed", held=sum(x.nbytes for x in (row, a, b, c)))


main()
