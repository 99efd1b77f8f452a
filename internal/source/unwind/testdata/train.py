"""A small PyTorch training job on the CPU. Arguments: steps."""
import sys
import torch

model = torch.nn.Sequential(*[
    torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(4)
])
optimizer = torch.optim.Adam(model.parameters())
torch.set_num_threads(1)


def step():
    x = torch.randn(4, 16, 64)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


step()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[1])):
    step()
print("done", flush=True)
sys.stdin.read()
