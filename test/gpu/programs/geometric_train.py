"""PyTorch Geometric: a graph attention network over batches of random graphs."""
from checkpoint import checkpoint

checkpoint("ready")  # its libraries are loaded while it is traced
import torch  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.loader import DataLoader  # noqa: E402
from torch_geometric.nn import GAT, global_mean_pool  # noqa: E402


def graph():
    return Data(x=torch.randn(200, 32), edge_index=torch.randint(0, 200, (2, 1000)), y=torch.randint(0, 10, (1,)))


def main():
    data = DataLoader([graph() for _ in range(64)], batch_size=16)
    model = GAT(32, 64, num_layers=6, out_channels=10, heads=4, norm="batch_norm", jk="cat", dropout=0.1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        for batch in data:
            batch = batch.to("cuda")
            loss = torch.nn.functional.cross_entropy(global_mean_pool(model(batch.x, batch.edge_index), batch.batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.cuda.synchronize()
    checkpoint("trained", reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), loss=float(loss))


main()
