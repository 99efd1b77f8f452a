"""CuPy: arrays, a matrix product, an FFT; its pool, of device or of managed memory, says what it holds.

    cupy_pool.py device | managed | holders
"""
import sys

from checkpoint import checkpoint

import cupy


class Cache:
    def __init__(self):
        self.rows = {"layer0": cupy.zeros((64, 1000), cupy.float16), 7: cupy.ones((), cupy.int64)}


def holders(pool):
    """Arrays held in many ways, and what CuPy knows of them and of its pool."""
    global kept, cache, view, plan
    kept, cache = [cupy.random.random((256, 1 << i)) for i in range(10)], Cache()
    view, plan = kept[9][::2, ::-1], cupy.cuda.alloc(12345)
    with cupy.cuda.Stream():
        kept.append(cupy.ones((3, 1 << 18), cupy.complex64))
        kept += [cupy.ones(1 << 16) for _ in range(6)]
    del kept[2:5], kept[-3]
    cupy.cuda.Device().synchronize()
    arrays = {f"kept[{i}]": a for i, a in enumerate(kept)} | {'cache.rows["layer0"]': cache.rows["layer0"], "cache.rows[7]": cache.rows[7]}
    truth = {path: [a.data.mem.ptr, a.data.mem.size, list(a.shape), a.dtype.name] for path, a in arrays.items()}
    del arrays
    checkpoint("held", version=cupy.__version__, truth=truth, plan=[plan.mem.ptr, plan.mem.size], free=pool.free_bytes(), free_blocks=pool.n_free_blocks(),
               used=pool.used_bytes())


def main():
    checkpoint("ready")
    pool = cupy.get_default_memory_pool()
    if sys.argv[1] == "holders":
        return holders(pool)
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
