"""Programs with one fault each, which know what it costs, and programs with none.

    findings.py CAUSE | healthy NAME

FINDINGS_DEVICE=cpu runs those that need no GPU, to see that they run.
"""
import copy
import gc
import os
import re
import subprocess
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
from checkpoint import checkpoint, held  # noqa: E402

DEVICE = os.environ.get("FINDINGS_DEVICE", "cuda")
GPU = DEVICE != "cpu"
FOLDER = tempfile.mkdtemp()
# What a rank other than this one saved: it is there before the trace begins.
SAVED = os.path.join(FOLDER, "rank0.pt")
SAVE = f"import torch; torch.save({{f'layers.{{i}}': torch.randn(4096, 4096, device='{DEVICE}') for i in range(4)}}, {SAVED!r})"

if __name__ == "__main__":
    if sys.argv[1] == "second-gpu":
        subprocess.run([sys.executable, "-c", SAVE], check=True)
    if not os.environ.get("FINDINGS_CHILD"):
        checkpoint("ready")
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

MIB, WIDTH = 1 << 20, 2048 if GPU else 512


def times(n):
    """How often something is done: less on a CPU, which is slow."""
    return n if GPU else max(3, n // 20)


def culprit(cause):
    """The line of this file that is marked as the cause."""
    with open(__file__) as f:
        return next(n for n, text in enumerate(f, 1) if re.search(rf"# culprit: {cause}$", text))


def wrong(cause, cost, *others, names=(), **values):
    """Says what the fault costs, in bytes, where it is, and what a finding must name beside the line."""
    if GPU:
        torch.cuda.synchronize()
    checkpoint("wrong", *others, bytes=cost, line=culprit(cause), names=list(names), **values)


def right():
    if GPU:
        torch.cuda.synchronize()
    checkpoint("right", reserved=torch.cuda.max_memory_reserved() if GPU else 0)


def mlp(width=1024, layers=2):
    parts = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts[:-1]).to(DEVICE)


def noise(*shape, **kinds):
    return torch.randn(*shape, device=DEVICE, **kinds)


def size(tensors):
    """The bytes of all of them."""
    return sum(t.numel() * t.element_size() for t in tensors)


def allocated():
    if not GPU:
        return 0
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def train(model, optimizer, batch):
    optimizer.zero_grad()
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


# Kept by the program.

def growth():
    """The outputs of all steps are collected on the GPU."""
    model, outputs = mlp(), []
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(times(200)):
        batch = noise(1024, 1024)
        train(model, optimizer, batch)
        with torch.no_grad():
            outputs.append(model(batch))  # culprit: growth
    wrong("growth", size(outputs), names=["outputs"])


def old_graph():
    """A running mean of a model's outputs is never detached."""
    model, centre, steps = mlp(), torch.zeros(1024, device=DEVICE), times(160)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        batch = noise(1024, 1024)
        train(model, optimizer, batch - centre.detach())
        centre = 0.9 * centre + 0.1 * model(batch).mean(dim=0)  # culprit: old-graph
    # Of each step the graph keeps the batch, and the first layer's output.
    wrong("old-graph", 2 * steps * size([batch]), names=["centre"])


class Monitor:
    def __init__(self):
        self.losses = []


def collected_graphs():
    """Losses of another batch are collected with their graphs."""
    global monitor
    model, monitor, steps = mlp(), Monitor(), times(160) // 2
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        train(model, optimizer, noise(1024, 1024))
        batch = noise(1024, 1024)
        monitor.losses.append((model(batch) - batch).square().mean())  # culprit: collected-graphs
    cost = 3 * steps * size([batch])  # the batch, the first layer's output, and the difference
    del batch
    wrong("collected-graphs", cost, names=["monitor.losses"])


def no_backward():
    """An evaluation without no_grad whose output is kept."""
    model, batch = mlp(WIDTH, 12), noise(4096, WIDTH)
    scores = model(batch)  # culprit: no-backward
    # Each layer saves its input: the batch is the first one's.
    wrong("no-backward", 12 * size([batch]), held=scores.numel())


def evaluation_graph():
    """After the training an evaluation runs with gradients on."""
    model, batch = mlp(WIDTH, 12), noise(4096, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(times(20)):
        train(model, optimizer, noise(256, WIDTH))
    model.eval()
    scores = model(batch)  # culprit: evaluation-graph
    wrong("evaluation-graph", 12 * size([batch]), held=scores.numel())


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = mlp(2048, 4), mlp(2048, 4)

    def forward(self, x):
        return self.encoder(x)


def idle_module():
    """Only the encoder of a model is trained, but the whole model is on the GPU."""
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.encoder.parameters(), fused=GPU)
    for _ in range(times(40)):
        train(model, optimizer, noise(512, 2048))
    wrong("idle-module", size(model.decoder.parameters()), names=["model.decoder"])  # culprit: idle-module


def stale_gradients():
    """Gradients are dropped after the forward pass only."""
    model = mlp(4096, 6)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(times(40)):
        batch = noise(8192, 4096)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()  # culprit: stale-gradients
        loss.backward()
        del loss
        optimizer.step()
    wrong("stale-gradients", size(model.parameters()))


def gathered():
    """An evaluation collects what the model says of each batch."""
    model, scores = mlp(), []
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(times(20)):
        train(model, optimizer, noise(1024, 1024))
    model.eval()
    with torch.no_grad():
        for _ in range(times(60)):
            out = model(noise(4096, 1024))
            scores.append(out.softmax(dim=-1))  # culprit: gathered
    wrong("gathered", size(scores), names=["scores"])


def small_view():
    """Only the first token's features are wanted, as views of all."""
    encoder, first = mlp(), []
    with torch.no_grad():
        for _ in range(times(40)):
            tokens = noise(64, 128, 1024)
            first.append(encoder(tokens)[:, 0])  # culprit: small-view
    wrong("small-view", len(first) * size([tokens]), names=["first"])


class Recorder:
    """Keeps what layers return, by hooks that nobody removes."""

    def __init__(self, layers):
        self.seen = []
        for layer in layers:
            layer.register_forward_hook(self.keep)

    def keep(self, layer, inputs, output):
        self.seen.append(output.detach())  # culprit: hook


def shapes(model):
    recorder = Recorder([model[0], model[2]])
    model(noise(1, 1024))
    return [tuple(x.shape) for x in recorder.seen]


def hook():
    """A summary of the model leaves its hooks behind."""
    model, forwards = mlp(), times(80)
    with torch.no_grad():
        shapes(model)
        for _ in range(forwards):
            batch = noise(1024, 1024)
            model(batch)
    wrong("hook", 2 * forwards * size([batch]), names=["_forward_hooks"])


def score(model, batch, labels):
    hidden = model(batch)
    probabilities = hidden.softmax(dim=1)
    if len(labels) != len(hidden):
        raise ValueError(f"{len(labels)} labels for {len(hidden)} rows")
    return F.nll_loss(probabilities.log(), labels)


def traceback():
    """Batches that fail are noted with their exceptions."""
    model, failures = nn.Linear(64, 8192, device=DEVICE), []
    with torch.no_grad():
        for _ in range(10):
            try:
                score(model, noise(2048, 64), torch.zeros(7, dtype=torch.long, device=DEVICE))
            except ValueError as e:
                failures.append(e)  # culprit: traceback
    wrong("traceback", 10 * (2 * 2048 * 8192 * 4 + 2048 * 64 * 4), names=["failures"])


def second_copy():
    """The checkpoint that training was resumed from is still there."""
    path = os.path.join(FOLDER, "resume.pt")
    model = mlp(WIDTH, 12)
    optimizer = torch.optim.Adam(model.parameters(), fused=GPU)
    train(model, optimizer, noise(64, WIDTH))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    saved = torch.load(path, map_location=DEVICE)  # culprit: second-copy
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for _ in range(times(20)):
        train(model, optimizer, noise(64, WIDTH))
    # The optimizer goes on with the tensors that were loaded for it.
    wrong("second-copy", size(model.parameters()), names=["saved"])


def frozen_copy():
    """An average of the weights: it may well be wanted, and costs as much as the model."""
    model = mlp(WIDTH, 12)
    average = copy.deepcopy(model).requires_grad_(False)  # culprit: frozen-copy
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(times(20)):
        train(model, optimizer, noise(64, WIDTH))
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters()):
                old.lerp_(new, 0.01)
    wrong("frozen-copy", size(average.parameters()), names=["average", "model"])


class Split(torch.autograd.Function):
    """Keeps its two outputs on ctx, whose node both refer to, so that the collector does not look into it."""

    @staticmethod
    def forward(ctx, x):
        half = x.shape[1] // 2
        ctx.parts = x[:, :half] * 2, x[:, half:] + 1  # culprit: cycle
        return ctx.parts

    @staticmethod
    def backward(ctx, first, second):
        return torch.cat([first * 2, second], dim=1)


def cycle():
    """Each call of a function of autograd leaves a cycle through C++."""
    model, steps = mlp(), times(150)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        batch = noise(1024, 1024)
        optimizer.zero_grad()
        first, second = Split.apply(model(batch))
        (first.square().mean() + second.square().mean()).backward()
        optimizer.step()
    del first, second
    gc.collect()
    wrong("cycle", steps * size([batch]), names=["parts"])


def cycle_graph():
    """Each trial's gradients keep the graph that made them."""
    batch = noise(512, 2048)
    model = mlp(2048, 3)
    model(batch).square().mean().backward()  # what cuBLAS keeps is there from now on
    del model
    before = allocated()
    for _ in range(8):
        model = mlp(2048, 3)
        model(batch).square().mean().backward(create_graph=True)  # culprit: cycle-graph
        sum(p.grad.square().sum() for p in model.parameters()).item()
    del model
    gc.collect()
    wrong("cycle-graph", allocated() - before, names=["create_graph=True"])


# Free, and yet not.

def waiting():
    """The CPU runs ahead of the GPU with batches that two streams use."""
    side, source = torch.cuda.Stream(), torch.empty(32 * MIB).pin_memory()
    main, total = torch.cuda.current_stream(), torch.zeros((), device=DEVICE)
    total += noise(1024).sum()  # the kernel is loaded
    torch.cuda.synchronize()
    torch.cuda._sleep(8_000_000_000)  # four seconds, as of a long step
    for _ in range(10):
        with torch.cuda.stream(side):
            batch = source.to(DEVICE, non_blocking=True)
        main.wait_stream(side)
        batch.record_stream(main)  # culprit: waiting
        total += batch.sum()
        del batch
    torch.cuda.synchronize()
    checkpoint("wrong", bytes=10 * 128 * MIB, line=culprit("waiting"), names=["10 tensors"])


def graph_pools():
    """A CUDA graph for each batch size, in a pool of its own."""
    model, graphs = mlp(4096, 4).half().eval(), []
    with torch.no_grad():
        for rows in 1024, 2048, 3072, 4096, 5120:
            x = torch.zeros(rows, 4096, device=DEVICE, dtype=torch.half)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                model(x)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # culprit: graph-pools
                y = model(x)
            graphs.append((graph, x, y))
    for graph, _, _ in graphs * 5:
        graph.replay()
    pools = {}
    for s in torch.cuda.memory_snapshot():
        if tuple(s["segment_pool_id"]) != (0, 0):
            pools[tuple(s["segment_pool_id"])] = pools.get(tuple(s["segment_pool_id"]), 0) + s["total_size"]
    wrong("graph-pools", sum(pools.values()) - max(pools.values()), names=["5 private pools"], pools=list(pools.values()))


def fragmentation():
    """Batches become longer, and what is kept of each lies in the memory that it had."""
    kept = []
    for i in range(40):
        batch = torch.empty((40 + i) * MIB, dtype=torch.uint8, device=DEVICE)
        del batch
        kept.append(torch.empty((42 + i) * MIB // 2, dtype=torch.uint8, device=DEVICE))  # culprit: fragmentation
    kept.append(torch.empty(128 * MIB, dtype=torch.uint8, device=DEVICE))  # no free piece is large enough
    lost = sum(b["size"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] == "inactive" and len(s["blocks"]) > 1)
    wrong("fragmentation", lost, names=["Fragmentation"], reserved=torch.cuda.memory_reserved())


# Made at the peak.

def optimizer_temporaries():
    """Adam computes all parameters at once."""
    model = mlp(4096, 6)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(times(20)):
        optimizer.zero_grad()
        model(noise(64, 4096)).square().mean().backward()
        optimizer.step()  # culprit: optimizer-temporaries
    wrong("optimizer-temporaries", size(model.parameters()))


def type_copy():
    """The logits of a large vocabulary are computed in bfloat16, and the loss in float32."""
    words, width = 65536, 1024
    embedding = nn.Embedding(words, width, device=DEVICE, dtype=torch.bfloat16)
    head = nn.Linear(width, words, bias=False, device=DEVICE, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(times(8)):
        tokens = torch.randint(words, (2048,), device=DEVICE)
        logits = head(embedding(tokens))
        wide = logits.float()  # culprit: type-copy
        optimizer.zero_grad()
        F.cross_entropy(wide, tokens.roll(-1)).backward()
        optimizer.step()
    wrong("type-copy", size([wide]))


class Product(torch.autograd.Function):
    """Keeps its inputs on ctx, where checkpointing does not see them."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.x, ctx.weight = x, weight
        return x @ weight.t()  # culprit: checkpoint

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.weight, gradient.t() @ ctx.x


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return Product.apply(Product.apply(x, self.up.weight), self.down.weight)


class Tower(nn.Module):
    """Runs each block under a checkpoint."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint as again
        for block in self.blocks:
            x = x + again(block, x, use_reentrant=False)
        return x


def gradient_checkpointing():
    """All layers keep their activations, although each is under a checkpoint."""
    rows, width = (4096, 1024) if GPU else (64, 64)
    model = Tower(Block(width) for _ in range(12)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(times(10)):
        train(model, optimizer, noise(rows, width))
    wrong("checkpoint", 12 * rows * 4 * width * 4)


def checkpoint_eval():
    """A model of transformers is trained in eval mode, as from_pretrained() returns it."""
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(n_embd=512, n_layer=12, n_head=8, vocab_size=2000)).to(DEVICE)
    model.gradient_checkpointing_enable()
    model.eval()
    optimizer, before, kept = torch.optim.SGD(model.parameters(), lr=1e-4), [], []
    model.transformer.h[0].register_forward_pre_hook(lambda *_: before.append(allocated()))
    model.transformer.h[11].register_forward_hook(lambda *_: kept.append(allocated() - before[-1]))
    for _ in range(times(20)):
        tokens = torch.randint(2000, (16, 512), device=DEVICE)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()  # culprit: checkpoint-eval
        optimizer.step()
    wrong("checkpoint-eval", kept[-1], names=["model.transformer.h", "eval mode"])


# Kept by a library.

def workspaces():
    """Each of sixteen streams has a workspace of cuBLAS."""
    weight, x = noise(2048, 2048), noise(2048, 2048)
    streams = [torch.cuda.Stream() for _ in range(16)]
    outs = [torch.empty_like(x) for _ in streams]
    torch.cuda.synchronize()
    before = allocated()
    for _ in range(5):
        for stream, out in zip(streams, outs):
            with torch.cuda.stream(stream):
                torch.mm(x, weight, out=out)  # culprit: workspaces
        torch.cuda.synchronize()
    wrong("workspaces", allocated() - before)


def plans():
    """Each length that an FFT is of has a plan, and those of large primes have tables."""
    torch.fft.fft(noise(1 << 20, dtype=torch.complex64))
    torch.cuda.synchronize()
    before = held()["nvml"]["0"] - torch.cuda.memory_reserved()
    for i in range(24):
        n = next(n for n in range(8_000_000 + 200_000 * i, 1 << 31) if all(n % d for d in range(2, 2000)))
        torch.fft.fft(noise(n, dtype=torch.complex64))  # culprit: plans
    torch.cuda.synchronize()
    wrong("plans", held()["nvml"]["0"] - torch.cuda.memory_reserved() - before)


def buckets():
    """Gradients are copied into buckets."""
    import torch.distributed as dist
    dist.init_process_group("nccl", init_method="file://" + os.path.join(FOLDER, "place"), rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(mlp(4096, 8), device_ids=[0])  # culprit: buckets
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(times(20)):
        train(model, optimizer, noise(256, 4096))
        if step < 2:
            time.sleep(1)  # NCCL lets go of the first buckets: they are made anew once
    wrong("buckets", size(model.parameters()), names=["DistributedDataParallel"])


def communicators():
    """Each of two ranks makes a group of processes for each of eight purposes, and they are all the same."""
    import torch.distributed as dist
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    x = noise(1 << 20)
    torch.cuda.synchronize()
    before = held()["nvml"][str(gpu)]
    dist.init_process_group("nccl", device_id=torch.device("cuda", gpu))
    groups = [dist.new_group() for _ in range(8)]  # culprit: communicators
    for group in groups:
        dist.all_reduce(x, group=group)
    torch.cuda.synchronize()
    wrong("communicators", held()["nvml"][str(gpu)] - before)


# The wrong place.

def second_gpu():
    """A rank loads what another one saved, which says that it is of GPU 0."""
    torch.cuda.set_device(1)
    model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(8)]).cuda()
    saved = torch.load(SAVED)  # culprit: second-gpu
    with torch.no_grad():
        for layer, weight in zip(model, saved.values()):
            layer.weight.copy_(weight)
    del saved, weight
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for _ in range(times(20)):
        optimizer.zero_grad()
        model(torch.randn(256, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    wrong("second-gpu", held()["nvml"].get("0", 0))


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        return torch.full((1024,), float(i))


def seed(worker):
    """Starts a worker of a DataLoader."""
    torch.zeros(1, device="cuda")  # culprit: workers


def workers():
    """Each worker makes a tensor on the GPU before it begins."""
    model = mlp(1024, 8)
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(Rows(), batch_size=64, num_workers=3, multiprocessing_context="spawn", worker_init_fn=seed, persistent_workers=True)
    batches = iter(loader)
    for batch in batches:
        train(model, optimizer, batch.to(DEVICE))
    others = [held(w.pid) for w in batches._workers]
    wrong("workers", sum(n for o in others for n in o["nvml"].values()), *others, names=["3 workers"])


def orphan():
    """A process that another one starts goes on when that has ended."""
    x = noise(1 << 20)
    if not os.environ.get("FINDINGS_CHILD"):
        subprocess.Popen([sys.executable, __file__, "orphan"], env={**os.environ, "FINDINGS_CHILD": "1"})
        time.sleep(15)
        os._exit(0)
    kept, parent = noise(256 * MIB), os.getppid()
    while os.getppid() == parent:
        time.sleep(0.1)
    time.sleep(12)
    wrong("orphan", sum(held()["nvml"].values()), names=["outlived"], kept=kept.numel())  # culprit: orphan


def module(name, text):
    """Writes a module that can be imported."""
    with open(os.path.join(FOLDER, name + ".py"), "w") as f:
        f.write(text)
    sys.path.insert(0, FOLDER)


def importing():
    """A module takes memory when it is imported."""
    module("gridworld", f"import torch\nvalues = torch.zeros({512 * MIB}, device={DEVICE!r})\n")
    import gridworld  # culprit: import
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(times(20)):
        train(model, optimizer, noise(64, 1024))
    wrong("import", size([gridworld.values]), place="gridworld.py:2")


def importing_jax():
    """A module makes an array when it is imported, for which JAX takes its whole share of the GPU."""
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.02"
    module("arena", "import jax.numpy as jnp\nboard = jnp.zeros((8, 8)).block_until_ready()\n")
    import arena  # culprit: import-jax
    import jax
    for _ in range(5):
        (arena.board @ arena.board).block_until_ready()
    checkpoint("wrong", bytes=jax.devices()[0].memory_stats()["bytes_limit"], line=culprit("import-jax"), names=[], place="arena.py:2")


CAUSES = {
    "growth": growth, "old-graph": old_graph, "collected-graphs": collected_graphs, "no-backward": no_backward, "small-view": small_view,
    "hook": hook, "traceback": traceback, "second-copy": second_copy, "frozen-copy": frozen_copy, "cycle": cycle, "cycle-graph": cycle_graph,
    "waiting": waiting, "graph-pools": graph_pools, "fragmentation": fragmentation, "optimizer-temporaries": optimizer_temporaries,
    "type-copy": type_copy, "checkpoint": gradient_checkpointing, "idle-module": idle_module, "stale-gradients": stale_gradients, "checkpoint-eval": checkpoint_eval, "evaluation-graph": evaluation_graph,
    "workspaces": workspaces, "plans": plans, "buckets": buckets, "communicators": communicators, "gathered": gathered,
    "second-gpu": second_gpu, "workers": workers, "orphan": orphan,
    "import": importing, "import-jax": importing_jax,
}


# Nothing is wrong with these.

def plain():
    model = mlp(2048, 6)
    optimizer = torch.optim.Adam(model.parameters(), fused=GPU)
    losses = []
    for _ in range(times(60)):
        losses.append(train(model, optimizer, noise(2048, 2048)))
    right()


def mixed():
    """Automatic mixed precision."""
    model, scaler = mlp(2048, 6), torch.amp.GradScaler(enabled=GPU)
    optimizer = torch.optim.AdamW(model.parameters(), fused=GPU)
    for _ in range(times(60)):
        batch = noise(4096, 2048)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16 if GPU else torch.bfloat16):
            loss = F.mse_loss(model(batch), batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    right()


def accumulation():
    """Gradients of eight batches are added up."""
    model = mlp(2048, 6)
    optimizer, schedule = torch.optim.AdamW(model.parameters()), []
    for step in range(times(20)):
        for _ in range(8):
            batch = noise(2048, 2048)
            ((model(batch) - batch).square().mean() / 8).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.append(step)
    right()


def recurrent():
    """Truncated backpropagation through time: the state is detached."""
    cell, head = nn.LSTMCell(512, 1024).to(DEVICE), nn.Linear(1024, 512).to(DEVICE)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
    state = None
    for _ in range(times(40)):
        losses = []
        for _ in range(16):
            x = noise(512, 512)
            state = cell(x, state)
            losses.append((head(state[0]) - x).square().mean())
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        state = tuple(s.detach() for s in state)
    right()


def evaluation():
    """Metrics are numbers of the CPU."""
    model, metrics = mlp(2048, 6), []
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        for _ in range(8):
            train(model, optimizer, noise(2048, 2048))
        model.eval()
        with torch.no_grad():
            for _ in range(16):
                batch = noise(4096, 2048)
                metrics.append((model(batch) - batch).square().mean().item())
        model.train()
    right()


def recomputing():
    """Gradient checkpointing that works."""
    model = Tower(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(8)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), fused=GPU)
    for _ in range(times(20)):
        train(model, optimizer, noise(4096, 1024))
    right()


def generation():
    """A cache of keys and values that becomes longer with each token."""
    width, layers = 1024, 8
    projections = [nn.Linear(width, 3 * width, device=DEVICE, dtype=torch.bfloat16) for _ in range(layers)]
    with torch.no_grad():
        for _ in range(2):
            x = noise(16, 1, width, dtype=torch.bfloat16)
            keys = [noise(16, 512, width, dtype=torch.bfloat16) for _ in range(layers)]
            values = [noise(16, 512, width, dtype=torch.bfloat16) for _ in range(layers)]
            for _ in range(times(100)):
                for i, projection in enumerate(projections):
                    q, k, v = projection(x).chunk(3, dim=-1)
                    keys[i], values[i] = torch.cat([keys[i], k], dim=1), torch.cat([values[i], v], dim=1)
                    x = x + F.scaled_dot_product_attention(q, keys[i], values[i])
                x = F.layer_norm(x, (width,))
    right()


def loader():
    """Workers that stay on the CPU."""
    model = mlp(1024, 8)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.DataLoader(Rows(), batch_size=512, num_workers=3, pin_memory=GPU, persistent_workers=True)
    for _ in range(3):
        for batch in data:
            train(model, optimizer, batch.to(DEVICE, non_blocking=True))
    right()


def prefetching():
    """The next batch is copied on a second stream."""
    model = mlp(1024, 8)
    optimizer, side, main = torch.optim.Adam(model.parameters()), torch.cuda.Stream(), torch.cuda.current_stream()
    source = torch.randn(4096, 1024).pin_memory()

    def copied():
        with torch.cuda.stream(side):
            return source.to(DEVICE, non_blocking=True)
    batch = copied()
    for _ in range(times(60)):
        main.wait_stream(side)
        batch.record_stream(main)
        following = copied()
        train(model, optimizer, batch).item()  # the CPU does not run ahead
        batch = following
    right()


class Policy(nn.Module):
    """Keeps what it did in an episode, until the rewards are known."""

    def __init__(self):
        super().__init__()
        self.body, self.saved = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 16)), []

    def forward(self, x):
        chosen = torch.distributions.Categorical(logits=self.body(x))
        action = chosen.sample()
        self.saved.append(chosen.log_prob(action))
        return action


def episodes():
    policy = Policy().to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters())
    for episode in range(30):
        for _ in range(40):
            policy(noise(256, 256))
        if episode == 29:
            right()
        optimizer.zero_grad()
        (-torch.stack(policy.saved).mean()).backward()
        optimizer.step()
        policy.saved.clear()


def adversarial():
    """Two models and two optimizers, and a graph that is used twice."""
    maker, judge = mlp(1024, 4), nn.Sequential(nn.Linear(1024, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1)).to(DEVICE)
    first, second = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    for _ in range(times(60)):
        fake = maker(noise(4096, 1024))
        second.zero_grad()
        (F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(noise(4096, 1024))).mean()).backward()
        second.step()
        first.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        first.step()
    right()


HEALTHY = {f.__name__: f for f in (plain, mixed, accumulation, recurrent, evaluation, recomputing, generation, loader, prefetching, episodes, adversarial)}

if __name__ == "__main__":
    (HEALTHY[sys.argv[2]] if sys.argv[1] == "healthy" else CAUSES[sys.argv[1]])()
