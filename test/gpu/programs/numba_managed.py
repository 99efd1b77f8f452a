"""Numba: managed memory, first of the host alone, then touched by a kernel on the GPU."""
from checkpoint import checkpoint

import numpy as np

if not hasattr(np, "row_stack"):  # which Numba 0.6x looks for and NumPy 2.5 lacks
    np.row_stack = np.vstack
from numba import cuda  # noqa: E402

N = 64 << 20


@cuda.jit
def fill(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = 1


def main():
    checkpoint("ready")
    small = cuda.to_device(np.ones(256, np.float32))
    fill[1, 256](small)  # the kernel is loaded by then
    a = cuda.managed_array((N,), dtype=np.float32)
    a[:1024] = 2
    cuda.synchronize()
    checkpoint("host", managed=a.nbytes)
    fill[N // 256, 256](a)
    cuda.synchronize()
    checkpoint("touched", managed=a.nbytes)


main()
