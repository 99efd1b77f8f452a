"""Trains a model of an installed package under torch.profiler, and says what that tells of its
memory: bytes by category at two moments, and bytes allocated by operator."""
import sys
import time

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import Action, Category

from checkpoint import checkpoint


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=512, n_head=8, use_cache=False)).cuda()

    def loss():
        tokens = torch.randint(0, 50000, (8, 256)).cuda()
        return model(tokens, labels=tokens).loss
    return model, loss


def resnet():
    import torchvision
    torch.manual_seed(0)
    model = torchvision.models.resnet50().cuda()

    def loss():
        images, classes = torch.randn(32, 3, 224, 224).cuda(), torch.randint(0, 1000, (32,)).cuda()
        return torch.nn.functional.cross_entropy(model(images), classes)
    return model, loss


def vit():
    import torchvision
    torch.manual_seed(0)
    model = torchvision.models.vit_b_16().cuda()

    def loss():
        images, classes = torch.randn(16, 3, 224, 224).cuda(), torch.randint(0, 1000, (16,)).cuda()
        return torch.nn.functional.cross_entropy(model(images), classes)
    return model, loss


def categories(prof, moment):
    """Bytes on the GPU by category at a moment, in ns since 1970."""
    memory = prof._memory_profile()
    live = {}
    for at, action, (key, version), size in memory.timeline:
        if key.device.type != "cuda" or at > moment and action != Action.PREEXISTING:
            continue
        if action == Action.DESTROY:
            live.pop(key, None)
        elif action != Action.INCREMENT_VERSION or key in live:
            live[key] = (version, size)
    sums = {}
    for key, (version, size) in live.items():
        category = memory._categories.get(key, version)
        name = category.name.lower() if isinstance(category, Category) else "unknown"
        sums[name] = sums.get(name, 0) + size
    return sums


def operators(prof):
    """Bytes allocated on the GPU by the operator right around them, and by all around them."""
    own, total = {}, {}

    def names(name):
        name = name.removeprefix("torch::autograd::")
        return [name] if name.startswith("aten::") or "Backward" in name and ":" not in name or name == "AccumulateGrad" else []

    def walk(node, inside):
        if node.tag == _EventType.TorchOp:
            inside = inside + names(node.name)
        elif node.tag == _EventType.Allocation:
            e = node.extra_fields
            if e.device.type == "cuda" and e.alloc_size > 0:
                last = inside[-1] if inside else ""
                own[last] = own.get(last, 0) + e.alloc_size
                for name in set(inside):
                    total[name] = total.get(name, 0) + e.alloc_size
        for child in node.children:
            walk(child, inside)
    for root in prof.profiler.kineto_results.experimental_event_tree():
        walk(root, [])
    return own, total


def held():
    return {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}


def main():
    checkpoint("ready")
    model, loss = {"gpt2": gpt2, "resnet": resnet, "vit": vit}[sys.argv[1]]()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(forward=lambda: None, backward=lambda: None):
        optimizer.zero_grad()
        x = loss()
        forward()
        x.backward()
        backward()
        optimizer.step()

    for _ in range(3):
        step()
    moments = {}

    def moment(name):
        torch.cuda.synchronize()
        time.sleep(0.05)
        moments[name] = time.time_ns()
        checkpoint(name, **held())
        time.sleep(0.05)

    checkpoint("begin", **held())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as prof:
        step()
        step(lambda: moment("forward"), lambda: moment("backward"))
        step()
    checkpoint("end", **held())
    own, total = operators(prof)
    checkpoint("said", **held(), most=torch.cuda.max_memory_allocated(), own=own, total=total, categories={name: categories(prof, at) for name, at in moments.items()})


main()
