"""Holds arrays of a stand-in for CuPy 13: extension types with its names, and the members that Cython gives them. It prints what is where, then
waits."""
import array
import gc
import json
import os
import sys
import weakref

import words

NONE, VTABLE = None, 0x1000


def bits(*n):
    return sum(1 << i for i in n)


BaseMemory = words.type("cupy.cuda.memory.BaseMemory", 3, 0, 0)  # ptr, size, device_id
Memory = words.type("cupy.cuda.memory.Memory", 3, 0, 0, BaseMemory)
PooledMemory = words.type("cupy.cuda.memory.PooledMemory", 5, bits(4), 0, BaseMemory)  # vtable, pool
UnownedMemory = words.type("cupy.cuda.memory.UnownedMemory", 4, bits(3), 1, BaseMemory)  # _owner
MemoryPointer = words.type("cupy.cuda.memory.MemoryPointer", 4, bits(3), 1)  # vtable, ptr, device_id, mem
Chunk = words.type("cupy.cuda.memory._Chunk", 7, bits(1, 5, 6), 1)  # vtable, mem, offset, size, stream_ident, prev, next
Arena = words.type("cupy.cuda.memory._Arena", 8, bits(1), 1)  # vtable, _free, two vectors
Pool = words.type("cupy.cuda.memory.SingleDeviceMemoryPool", 12, bits(1, 2, 3), 1)  # vtable, _allocator, _in_use, _arenas, _total_bytes
# From 14.1 on: vtable, _pending_free, a std::set, __weakref__; vtable, _allocator, _arenas, a mutex, _total_bytes, _in_use_bytes
NewArena = words.type("cupy.cuda.memory._Arena", 9, bits(1), 1, None, 8)
NewPool = words.type("cupy.cuda.memory.SingleDeviceMemoryPool", 13, bits(1, 2), 1)
# vtable, __weakref__, size, _shape, _strides, three flags, dtype, data, base
Base = words.type("cupy._core.core._ndarray_base", 14, bits(11, 12, 13), 1)


class ndarray(Base):
    __module__ = "cupy"


class float32:
    pass


class dtype:
    __slots__ = ("type",)

    def __init__(self, t):
        self.type = t


GPU, truth, vectors, pointers = 1, {}, [], []


def vector(numbers):
    if not numbers:
        return 0, 0, 0
    vectors.append(array.array("q", numbers))
    at, n = vectors[-1].buffer_info()
    return at, at + 8 * n, at + 8 * n


def pointer(memory, address, device=GPU):
    p = words.fill(MemoryPointer(), VTABLE, address, device, memory)
    return p


def new(data, shape, strides=None, size=None):
    if strides is None:
        strides, n = [], 4
        for d in reversed(shape):
            strides.insert(0, n)
            n *= d
    if size is None:
        size = 1
        for d in shape:
            size *= d
    return words.fill(ndarray(), VTABLE, 0, size, *vector(shape), *vector(strides), 1 << 32 | 1, 1, dtype(float32), data, NONE)


def says(path, address, bytes, shape):
    truth[path] = dict(address=address, bytes=bytes, shape=shape, klass="ndarray", device=GPU)


in_use, free = {}, []
pool = words.fill(Pool(), VTABLE, NONE, in_use, {7: words.fill(Arena(), VTABLE, free)}, 64 * 0x4000, 0)
segment = words.fill(Memory(), 0x7f0000000000, 1 << 20, GPU)
chunks = [words.fill(Chunk(), VTABLE, segment, 0x4000 * i, 0x4000, 7, NONE, NONE) for i in range(64)]
for i, c in enumerate(chunks):
    words.fill(c, VTABLE, segment, 0x4000 * i, 0x4000, 7, chunks[i - 1] if i else NONE, chunks[i + 1] if i < 63 else NONE)


def pooled(i):
    address = 0x7f0000000000 + 0x4000 * i
    in_use[address] = chunks[i]
    return pointer(words.fill(PooledMemory(), address, 0x4000, GPU, VTABLE, weakref.ref(Chunk)), address)


batches = [new(pooled(i), [16, 256]) for i in range(3)]
for i in range(3):
    says("batches[%d]" % i, 0x7f0000000000 + 0x4000 * i, 0x4000, [16, 256])
in_use[0x7f000000c000] = chunks[3]
shared = words.fill(PooledMemory(), 0x7f000000c000, 0x4000, GPU, VTABLE, weakref.ref(Chunk))
whole, part = new(pointer(shared, 0x7f000000c000), [4096]), new(pointer(shared, 0x7f000000c100), [10])
reverse = new(pointer(shared, 0x7f000000fffc), [4096], [-4])
del shared
scalar = new(pooled(4), [])
says("scalar", 0x7f0000010000, 0x4000, [])
broadcast = new(pooled(5), [1 << 30, 4], [0, 4])
says("broadcast", 0x7f0000014000, 0x4000, [1 << 30, 4])
empty = new(pointer(words.fill(Memory(), 0, 0, GPU), 0), [0, 7])
plan = pooled(6)  # a plan's work area
free += [None, set(chunks[7:20]), {chunks[20], chunks[21]}]
free[2].discard(chunks[21])
for c in chunks[21:]:
    in_use[0x7f0000000000 + 0x4000 * chunks.index(c)] = c  # by an array that was gone
outside = new(pointer(words.fill(UnownedMemory(), 0x7f1000000000, 400, GPU, []), 0x7f1000000000), [100])
says("outside", 0x7f1000000000, 400, [100])
lent = new(pointer(words.fill(UnownedMemory(), 0x7f0000004100, 400, GPU, batches), 0x7f0000004100), [100])  # inside of batches[1]
memory = words.fill(Memory(), 0x7f2000000000, 4000, GPU)
strange = [
    new(pointer(memory, 0x7f2000000000), [1001]),  # larger than its memory
    new(pointer(memory, 0x7f2000000ffc), [1, 2]),
    new(pointer(memory, 0x7f2000000000), [10], [-4]),
    new(pointer(memory, 0x7f2000000000), [10], size=11),
    new(pointer(memory, 0x7f2000000000), [1 << 40, 1 << 40], [1 << 40, 1 << 40], 0),
    new(pointer(memory, 0x7f2000000000), [10], [4, 4]),
]
wild = [pointer(memory, 0x7f2000001001), pointer(memory, 0x7f2000000000, 2), pointer(words.fill(Memory(), 0x7f2000000000, 1 << 62, GPU), 0x7f2000000000)]


def tree(arena, pending, chunks):
    """A std::set of sizes and chunks in an arena, each node at the right of the one before."""
    parent = own = id(arena) + 40
    nodes = [array.array("Q", [0] * 6) for _ in chunks]
    at = [n.buffer_info()[0] for n in nodes]
    for i, c in enumerate(chunks):
        nodes[i][:] = array.array("Q", [1, at[i - 1] if i else own, 0, at[i + 1] if i + 1 < len(at) else 0, 0x2000, id(c)])
    vectors.extend(nodes)
    return words.fill(arena, VTABLE, pending, 0, 0, at[0] if at else 0, at[0] if at else own, at[-1] if at else own, len(at))


newer = words.fill(Memory(), 0x7f3000000000, 1 << 20, GPU)
new_chunks = [words.fill(Chunk(), VTABLE, newer, 0x2000 * i, 0x2000, 7, NONE, NONE) for i in range(7)]
arenas = [tree(NewArena(), new_chunks[:2], new_chunks[2:7]), tree(NewArena(), [], [])]
new_pool = words.fill(NewPool(), VTABLE, NONE, {7: weakref.ref(arenas[0]), 8: weakref.ref(arenas[1])}, 0, 0, 0, 0, 0, 1 << 20, (1 << 20) - 7 * 0x2000)
new_wrong = words.fill(NewPool(), VTABLE, NONE, {7: weakref.ref(arenas[0])}, 0, 0, 0, 0, 0, 1 << 20, 1 << 19)  # has more free than its chunks
wrong = words.fill(Pool(), VTABLE, NONE, {}, {}, 512, 0)  # has more than its chunks
twice = words.fill(Pool(), VTABLE, NONE, {0x7f0000000000: chunks[1]}, {}, 0x4000, 0)  # its key says otherwise
del c, i
print(json.dumps({"pid": os.getpid(), "objects": len(gc.get_objects()), "truth": truth}), flush=True)
sys.stdin.readline()
