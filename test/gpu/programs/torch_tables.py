"""What two tables of tensors are made of, and what the program itself knows of them.

    torch_tables.py shapes | parameters
"""
import gc
import sys

from checkpoint import checkpoint

checkpoint("ready")
import torch  # noqa: E402
from torch import nn  # noqa: E402


def storage(t):
    """Address and bytes of a tensor on the GPU, None for another one."""
    if not t.is_cuda:
        return None
    s = t.untyped_storage()
    return (s.data_ptr(), s.nbytes()) if s.data_ptr() else None


def shapes():
    """How many storages and bytes the garbage collector finds, by shape, type and class."""
    rows, seen = {}, set()
    for o in gc.get_objects():
        if not issubclass(type(o), torch.Tensor):
            continue
        for t in [o] + ([o.grad] if o.is_leaf and o.grad is not None else []):
            s = storage(t)
            if s and s[0] not in seen:
                seen.add(s[0])
                key = f"({', '.join(map(str, t.shape))}) {str(t.dtype)[len('torch.'):]} {type(t).__name__}"
                n, size = rows.get(key, (0, 0))
                rows[key] = n + 1, size + s[1]
    return rows


def told(name, **values):
    torch.cuda.synchronize()
    checkpoint(name, shapes=shapes(), allocated=torch.cuda.memory_allocated(), **values)


def image(n):
    return torch.randn(n, 3, 512, 512, device="cuda")


def by_shape():
    """The convolutions of a VGG-19, then images, some of which go to the CPU."""
    global features, first, second
    from torchvision.models import vgg19
    features = vgg19().features
    told("before")
    features.cuda()
    told("model")
    first = {30: image(30), 40: image(40), 60: image(60)}
    told("three")
    second = {120: image(120), 80: image(80)}
    told("five")
    second[120], first[40] = second[120].cpu(), first[40].cpu()
    torch.cuda.empty_cache()
    told("moved")


class Recommender(nn.Module):
    """Factors of users and items, multiplied, and beside that a network over others."""

    def __init__(self, users=138493, items=26744, factors=64):
        super().__init__()
        self.mf_user_embed, self.mf_item_embed = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.mlp_user_embed, self.mlp_item_embed = nn.Embedding(users, 2 * factors), nn.Embedding(items, 2 * factors)
        self.mlp = nn.Sequential(nn.Linear(4 * factors, 4 * factors), nn.ReLU(), nn.Linear(4 * factors, 2 * factors), nn.ReLU(), nn.Linear(2 * factors, factors))
        self.final = nn.Linear(2 * factors, 1)

    def forward(self, user, item):
        mf = self.mf_user_embed(user) * self.mf_item_embed(item)
        deep = self.mlp(torch.cat([self.mlp_user_embed(user), self.mlp_item_embed(item)], 1))
        return self.final(torch.cat([mf, deep], 1))


def by_parameter():
    global model, optimizer, loss
    model = Recommender().cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def forward():
        return model(torch.randint(0, 138493, (1 << 16,), device="cuda"), torch.randint(0, 26744, (1 << 16,), device="cuda")).square().mean()
    for _ in range(3):
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()
    loss = forward()  # its graph has the feature maps
    size = {name: [(storage(t) or (0, 0))[1] for t in (p, p.grad)] + [sum((storage(x) or (0, 0))[1] for x in optimizer.state[p].values() if isinstance(x, torch.Tensor))]
            for name, p in model.named_parameters()}
    told("trained", parameters=size)


by_shape() if sys.argv[1] == "shapes" else by_parameter()
