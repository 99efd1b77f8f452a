"""Programs of installed packages, with random weights: they train with the packages' own classes."""
import os
import shutil

from case import NATIVE, TENSORS, case, owned, python, traced, whole

LIBRARIES = ("cublas", "cudnn", "cufft", "curand", "cusolver", "cusparse", "nccl", "triton")
# PyTorch's allocators, and what each says that it has of the driver. The second asks for every tensor.
BACKENDS = {"native": ("", "reserved"), "async": ("backend:cudaMallocAsync", "allocated")}


def trains(r, program, backends=tuple(BACKENDS)):
    for name in backends:
        backend, figure = BACKENDS[name]
        with traced(r, python(program), {"PYTORCH_CUDA_ALLOC_CONF": backend},
                    NATIVE + (TENSORS if name == "native" else ()), suffix="-" + name) as t:
            v, s = t.at("trained")
            r.note(f"{name}: it says", {k: x for k, x in v.items() if k != "processes"})
            r.equal(f"{name}: PyTorch's bytes", s.device(owner="pytorch"), v[figure])
            owned(r, s, "pytorch", *LIBRARIES)
            whole(r, s, f", {name}")
            t.finish()


@case("torch", "lightning")
def lightning(r):
    trains(r, "lightning_train.py")


@case("torch", "transformers", "accelerate")
def accelerate(r):
    trains(r, "accelerate_train.py")


@case("torch", "timm")
def timm(r):
    trains(r, "timm_train.py")


@case("torch", "torchvision")
def torchvision(r):
    trains(r, "torchvision_train.py")


@case("torch", "torch_geometric")
def geometric(r):
    trains(r, "geometric_train.py")


@case("torch", "triton")
def compiled_graphs(r):
    trains(r, "torch_compile_graphs.py", ["native"])  # its pools are not for the other


@case("torch")
def plugin(r):
    """An allocator whose library comes with the first call."""
    place = r.path("-library")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    with traced(r, python("torch_plugin.py", os.path.join(place, "plugin.so")), flags=NATIVE) as t:
        v, s = t.at("trained")
        r.equal("the allocator's bytes", s.device(owner="plugin"), v["held"])
        owned(r, s, "plugin", *LIBRARIES)
        whole(r, s)
        t.finish()


@case("numba")
def numba_kernels(r):
    with traced(r, python("numba_kernels.py"), flags=NATIVE) as t:
        v, s = t.at("computed")
        r.equal("Numba's bytes", s.device(owner="numba"), v["held"])
        owned(r, s, "numba")
        whole(r, s)
        t.finish()
