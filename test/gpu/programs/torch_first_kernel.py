"""A module on the GPU before any kernel ran, and then the first kernel."""
from checkpoint import checkpoint

import torch

module = torch.nn.Linear(4096, 4096).cuda()  # copies, no kernel
torch.cuda.synchronize()
checkpoint("ready")
checkpoint("copied")
x = torch.empty(16, 4096, device="cuda").fill_(1)
torch.cuda.synchronize()
checkpoint("filled")
