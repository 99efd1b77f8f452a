"""timm: a vision Transformer and a convolutional network, with its optimizers, loss, mixup and moving average."""
from checkpoint import checkpoint

checkpoint("ready")  # its libraries are loaded while it is traced
import timm  # noqa: E402
import torch  # noqa: E402
from timm.data import Mixup  # noqa: E402
from timm.loss import SoftTargetCrossEntropy  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.utils import ModelEmaV2, NativeScaler  # noqa: E402


def train(name, steps):
    model = timm.create_model(name, pretrained=False, num_classes=100, drop_path_rate=0.1).cuda()
    average = ModelEmaV2(model)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    mixup, criterion, scaler = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=100), SoftTargetCrossEntropy(), NativeScaler()
    for _ in range(steps):
        images, targets = mixup(torch.randn(8, 3, 224, 224, device="cuda"), torch.randint(0, 100, (8,), device="cuda"))
        with torch.autocast("cuda"):
            loss = criterion(model(images), targets)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        average.update(model)
    return model, average, optimizer


def main():
    kept = [train("vit_tiny_patch16_224", 4), train("efficientnet_b0", 3)]
    torch.cuda.synchronize()
    checkpoint("trained", reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), models=len(kept))


main()
