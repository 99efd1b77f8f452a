"""CuPy: arrays, a matrix product, an FFT; its pool says what it holds."""
from checkpoint import checkpoint

import cupy


def pool_bytes():
    cupy.cuda.Device().synchronize()
    return cupy.get_default_memory_pool().total_bytes()


def main():
    checkpoint("ready")
    a = cupy.random.random((4096, 4096))
    b = a @ a
    c = cupy.fft.fft(b)
    checkpoint("computed", pool=pool_bytes())
    del a, b, c
    cupy.fft.config.get_plan_cache().clear()
    cupy.get_default_memory_pool().free_all_blocks()
    checkpoint("freed", pool=pool_bytes())


main()
