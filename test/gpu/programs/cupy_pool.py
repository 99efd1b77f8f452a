"""CuPy: arrays, a matrix product, an FFT; its pool, of device or of managed memory, says what it holds."""
import sys

from checkpoint import checkpoint

import cupy


def main():
    checkpoint("ready")
    pool = cupy.get_default_memory_pool()
    if sys.argv[1] == "managed":
        pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
        cupy.cuda.set_allocator(pool.malloc)

    def told(name):
        cupy.cuda.Device().synchronize()
        checkpoint(name, pool=pool.total_bytes())

    a = cupy.random.random((4096, 4096))
    b = a @ a
    c = cupy.fft.fft(b)
    told("computed")
    del a, b, c
    cupy.fft.config.get_plan_cache().clear()
    pool.free_all_blocks()
    told("freed")


main()
