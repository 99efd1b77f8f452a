"""Programs whose tensors are held in many ways, and what each knows of them by itself.

    torch_holders.py gpt2 | trainer | timm | torchvision | peft | lightning | fsdp2 | ddp | natives | forked | objects COUNT | leaks NAME
"""
import collections
import functools
import gc
import os
import random
import sys
import threading
import time

os.environ["HF_HUB_OFFLINE"] = "1"
from checkpoint import checkpoint  # noqa: E402

checkpoint("ready")
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402


def truth(model=None):
    """Every storage on the GPU that the program can find, its parameters' names, and the allocator's blocks."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # C++ alone holds them
    storages, names = {}, {}
    for o in gc.get_objects():
        try:
            if isinstance(o, torch.Tensor) and o.is_cuda:
                for t in (o, o.grad if o.is_leaf else None):
                    if t is not None:
                        s = t.untyped_storage()
                        if s.data_ptr():
                            storages[s.data_ptr()] = s.nbytes()
        except Exception:
            pass
    if model is not None:  # a DTensor's memory is that of its local shard
        names = {n: getattr(p, "_local_tensor", p).untyped_storage().data_ptr() for n, p in model.named_parameters(remove_duplicate=False)}
    blocks = [[b["address"], b["size"]] for g in torch.cuda.memory_snapshot() for b in g["blocks"] if b["state"] == "active_allocated"]
    return {"storages": list(storages.items()), "names": names, "blocks": blocks, "allocated": torch.cuda.memory_allocated(),
            "objects": len(gc.get_objects()), "allocators": allocators()}


def allocators():
    """What PyTorch says of its allocator on each GPU that it has memory of."""
    segments, out = torch.cuda.memory_snapshot(), []
    for device in range(torch.cuda.device_count()):
        own, stats = [g for g in segments if g["device"] == device], torch.cuda.memory_stats(device)
        if own:
            states = [b["state"] for g in own for b in g["blocks"]]
            out.append({"device": device, "segments": len(own), "blocks": states.count("active_allocated"), "free_blocks": states.count("inactive"),
                        "reserved_bytes": sum(g["total_size"] for g in own), **{f"{x}_bytes": stats[f"{x}_bytes.all.current"] for x in ("allocated", "active", "requested")}})
    return out


class Cache:
    __slots__ = ("kv",)

    def __init__(self):
        self.kv = {"layer0": torch.zeros(1 << 20, device="cuda"), 7: torch.ones(70, device="cuda")}


class Service:
    def __init__(self):
        self.cache, self.recent = Cache(), collections.deque([torch.ones(100, 1000, device="cuda") for _ in range(3)], maxlen=8)


def closure():
    hidden = torch.zeros(3, 1 << 18, device="cuda")
    return lambda: hidden


@functools.lru_cache(maxsize=16)
def table(n):
    return torch.arange(n, device="cuda").float()


def worker():
    in_a_frame = torch.zeros(5, 1 << 16, device="cuda")
    time.sleep(1000)
    return in_a_frame


STEPS_FOR = float(os.environ.get("STEPS_FOR", 3))  # seconds


def wait(model, step, **more):
    """Says what is true, waits; then trains, and says when each step began and how long it took, in seconds."""
    checkpoint("trained", truth=truth(model), **more)
    while True:
        steps, end = [], time.monotonic() + STEPS_FOR
        while time.monotonic() < end:
            begin = time.monotonic()
            step()
            torch.cuda.synchronize()
            steps.append([begin, time.monotonic() - begin])
        if checkpoint("steps", steps=steps) == "end":
            break


def gpt2():
    import transformers as t
    global m, opt, service, f, leaked
    m = t.GPT2LMHeadModel(t.GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=2000)).cuda()
    opt, service, f, leaked = torch.optim.AdamW(m.parameters()), Service(), closure(), []
    table(10000)
    threading.Thread(target=worker, name="prefetch", daemon=True).start()

    def step(keep=False):
        ids = torch.randint(0, 2000, (4, 128), device="cuda")
        out = m(input_ids=ids, labels=ids)
        out.loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=False)
        if keep:
            ids = torch.randint(0, 2000, (4, 128), device="cuda")
            leaked.append(m(input_ids=ids, labels=ids).loss)
    for i in range(6):
        step(i % 2 == 0)
    time.sleep(.5)
    wait(m, step)


def trainer():
    import tempfile
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    data = [{"input_ids": torch.randint(0, 8192, (256,)), "labels": torch.randint(0, 8192, (256,))} for _ in range(64)]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_embd=512, n_layer=8, n_head=8))
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=4, report_to=[], save_strategy="no", disable_tqdm=True)
    t = Trainer(model=model, args=args, train_dataset=data)
    t.train()
    wait(model, lambda: model(input_ids=torch.randint(0, 8192, (4, 64), device="cuda")).logits.sum().backward())


def timm():
    import timm
    from timm.utils import ModelEmaV2
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=100).cuda()
    average, optimizer = ModelEmaV2(model), torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.randn(8, 3, 224, 224, device="cuda")).square().mean().backward()
        optimizer.step()
        average.update(model)
    for _ in range(3):
        step()
    wait(model, step)


def torchvision():
    from torchvision.models import resnet50
    model, batch = resnet50().cuda(), int((sys.argv[2:] or [8])[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step():
        optimizer.zero_grad()
        model(torch.randn(batch, 3, 128, 128, device="cuda")).square().mean().backward()
        optimizer.step()
    for _ in range(3):
        step()
    wait(model, step)


def peft():
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel
    model = get_peft_model(GPT2LMHeadModel(GPT2Config(n_embd=512, n_layer=6, n_head=8, vocab_size=8192)), LoraConfig(target_modules=["c_attn"])).cuda()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    def step():
        ids = torch.randint(0, 8192, (4, 128), device="cuda")
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    for _ in range(3):
        step()
    wait(model, step)


def lightning():
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.transformer import LightningTransformer
    from torch.utils.data import DataLoader, TensorDataset

    class Demo(LightningTransformer):
        def prepare_data(self):
            """It would download a text."""

        def on_train_batch_end(self, outputs, batch, index):
            if index == 5:
                wait(self, lambda: self.layers_sum())

        def layers_sum(self):
            sum(p.square().sum() for p in self.parameters()).backward()
    tokens = torch.randint(0, 8192, (64, 36))
    data = DataLoader(TensorDataset(tokens[:, :-1].clone(), tokens[:, 1:].clone()), batch_size=8)
    trainer = Trainer(max_steps=7, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Demo(vocab_size=8192), train_dataloaders=data)


def fsdp2():
    """A rank that torchrun started: parameters, gradients and optimizer state are DTensors."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 4, enable_nested_tensor=False).cuda()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 128, 512, device="cuda")).square().mean().backward()
        optimizer.step()
    losses.append(model(torch.randn(8, 128, 512, device="cuda")).square().mean())
    dist.barrier()
    checkpoint("trained", truth=truth(model))


def ddp():
    """A rank that torchrun started, whose gradients are copied to buckets."""
    import torch.distributed as dist
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    global model, optimizer
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(16)]).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
    time.sleep(1)  # NCCL keeps what it sent until its watchdog has looked, each 0.1 s, and the next call
    dist.barrier()
    logged = model._get_ddp_logging_data()
    sizes = [int(x) for x in str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]).split(",")]
    checkpoint("trained", truth=truth(model), buckets=sizes, gradients=sum(p.numel() * p.element_size() for p in model.parameters()))


def natives():
    """Workspaces of cuBLAS on two streams, and blocks of a graph's pool that only C++ has."""
    def active():
        return {b["address"]: [b["requested_size"], list(g["segment_pool_id"])] for g in torch.cuda.memory_snapshot() for b in g["blocks"] if b["state"] == "active_allocated"}
    global a, other, graph, out
    a, other = torch.randn(512, 512, device="cuda"), torch.cuda.Stream()
    a @ a
    with torch.cuda.stream(other):
        a @ a
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = (a @ a).relu()
    a @ a
    torch.cuda.synchronize()
    before = active()
    checkpoint("held", blocks=list(before.items()), python=[a.data_ptr(), out.data_ptr()])
    torch._C._cuda_clearCublasWorkspaces()
    gone = before.keys() - active().keys()
    checkpoint("cleared", workspaces=[[address, before[address][0]] for address in sorted(gone)])


def forked():
    """Forks a child that has the same objects, and none of their memory."""
    global kept
    kept = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    checkpoint("held", child=child, kept=kept.data_ptr())
    os.kill(child, 9)
    os.waitpid(child, 0)


class Part(nn.Module):
    """A module with what a program keeps beside it."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(16))
        self.register_buffer("mask", torch.zeros(4))
        self.names, self.settings, self.hook = [str(n), str(-n)], {"id": n, "of": (n, [str(n)])}, lambda x: (x, n)


def objects():
    """As many objects that the garbage collector tracks as the first argument says, of the usual kinds, some of which came
    and went, and as many tensors as the second one says."""
    global parts, rows, model, tensors
    gc.disable()
    tensors = [torch.empty(1 + n % 300, device="cuda") for n in range(int((sys.argv[3:] or [0])[0]))]
    model, parts, rows = nn.Linear(64, 64).cuda(), nn.ModuleList(Part(n) for n in range(1000)), []
    want = int(sys.argv[2]) + 1000  # what waits for the collector is not counted
    while (missing := want - len(gc.get_objects())) > 0:
        more = [[{"id": n, "of": [str(n)]}, (n, [str(n)]), {str(n)}, " " * (n % 300)] for n in range(missing // 8 + 1)]
        random.shuffle(more)
        rows += more[::2]
        del more
        gc.collect()
    checkpoint("trained", truth=truth(model))


class Node:
    pass


def leak(name):
    """A training loop that has one of the usual leaks."""
    global model, history, total, hook, recent
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    history, total, hook = [], torch.zeros((), device="cuda"), []
    gc.disable()
    local = threading.local()

    def forward():
        return model(torch.randn(1024, 512, device="cuda"))

    @functools.lru_cache(maxsize=None)
    def positions(n):
        return torch.zeros(n, 1024, device="cuda")
    globals()["positions"] = positions

    def thread():
        kept_by_thread = []
        local.kept = kept_by_thread
        for _ in range(20):
            kept_by_thread.append(forward().detach())
        stop.wait()

    def make():
        captured = [forward().detach() for _ in range(20)]
        return lambda: captured
    stop = threading.Event()
    for i in range(20):
        optimizer.zero_grad()
        out = forward()
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        if name == "list":
            history.append(out.detach())
        elif name == "graph":
            total = total + forward().square().mean()
        elif name == "cycle":
            n = Node()
            n.me, n.activations = n, out.detach()
        elif name == "lru_cache":
            positions(500 + i)
    if name == "closure":
        hook.append(make())
    if name == "thread":
        threading.Thread(target=thread, name="prefetch", daemon=True).start()
        time.sleep(1)
    out = loss = None
    wait(model, forward)


if sys.argv[1] == "leaks":
    leak(sys.argv[2])
else:
    globals()[sys.argv[1]]()
