"""torchvision: a detector in training, with its own operators."""
from checkpoint import checkpoint

checkpoint("ready")  # its libraries are loaded while it is traced
import torch  # noqa: E402
from torchvision.models.detection import fasterrcnn_resnet50_fpn  # noqa: E402


def target():
    corner = torch.rand(5, 2, device="cuda") * 200
    return {"boxes": torch.cat([corner, corner + 20 + torch.rand(5, 2, device="cuda") * 60], 1),
            "labels": torch.randint(1, 5, (5,), device="cuda")}


def main():
    torch.manual_seed(0)
    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5, min_size=320, max_size=320).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    for _ in range(4):
        losses = model([torch.rand(3, 320, 320, device="cuda") for _ in range(2)], [target() for _ in range(2)])
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        found = model([torch.rand(3, 320, 320, device="cuda")])
    torch.cuda.synchronize()
    checkpoint("trained", reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), found=len(found))


main()
