"""PyTorch with an allocator that is built and loaded at run time. It is given where to build it."""
import ctypes
import os
import shutil
import subprocess
import sys

from checkpoint import checkpoint

if __name__ == "__main__":
    checkpoint("ready")  # its libraries are loaded while it is traced
import torch  # noqa: E402


def built(library):
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugin.cu")
    subprocess.run([compiler, "-shared", "-Xcompiler", "-fPIC", "-cudart", "static", "-O2", "-o", library, source], check=True)
    return library


def main():
    library = built(sys.argv[1])
    torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(library, "plugin_malloc", "plugin_free"))
    held = ctypes.CDLL(library).plugin_held
    held.restype = ctypes.c_long
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True), 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        model(torch.randn(8, 64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    checkpoint("trained", held=held())


if __name__ == "__main__":
    main()
