"""Programs of PyTorch whose memory whatif and fit predict: whatif_programs.py NAME BATCH STEPS.

The environment has PyTorch's own settings, and these: WHATIF_LIMIT is how many bytes PyTorch may reserve
(set_per_process_memory_fraction), and with WHATIF_CUDNN=off nothing uses cuDNN. WHATIF_SNAPSHOT is a file for
PyTorch's own recorder, with the rank before ".pickle", which begins before the program does, or with WHATIF_LATE
when it was run once. The same
name, batch and steps always make the same requests, unless a library chooses others."""
import os
import random
import sys

from checkpoint import checkpoint

checkpoint("ready")  # its libraries are loaded while it is traced
import torch  # noqa: E402
from torch import nn  # noqa: E402


def lengths(steps, most):
    """How long the texts of each step are, whatever the batch."""
    chance = random.Random(1)
    return [chance.randrange(most // 4, most + 1) for _ in range(steps)]


def train(model, batches, loss, optimizer=torch.optim.AdamW):
    model = model.cuda().train()
    optimizer = optimizer([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for batch in batches:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def texts(batch, steps, vocabulary, most=96):
    for n in lengths(steps, most):
        yield torch.randint(vocabulary, (batch, n), device="cuda")


def labelled(model, x):
    return model(input_ids=x, labels=x).loss


def gpt2_model():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_positions=128, n_embd=768, n_layer=3, n_head=12, use_cache=False))


def gpt2(batch, steps):
    train(gpt2_model(), texts(batch, steps, 8192), labelled)


def bert(batch, steps):
    from transformers import BertConfig, BertForMaskedLM
    config = BertConfig(vocab_size=8192, hidden_size=768, num_hidden_layers=3, num_attention_heads=12, intermediate_size=3072)
    train(BertForMaskedLM(config), texts(batch, steps, 8192), labelled)


def llama(batch, steps):
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=8192, hidden_size=768, intermediate_size=2048, num_hidden_layers=3, num_attention_heads=12, use_cache=False)
    train(LlamaForCausalLM(config), texts(batch, steps, 8192), labelled)


def peft(batch, steps):
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(gpt2_model(), LoraConfig(r=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True))
    train(model, texts(batch, steps, 8192), labelled)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers, self.head = nn.Embedding(8000, 256), nn.LSTM(256, 512, 2, batch_first=True), nn.Linear(512, 8000)

    def forward(self, x):
        return self.head(self.layers(self.words(x))[0])


def lstm(batch, steps):
    train(Recurrent(), texts(batch, steps, 8000), lambda model, x: nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()))


def images(batch, steps, size):
    for _ in range(steps):
        yield torch.randn(batch, 3, size, size, device="cuda"), torch.randint(100, (batch,), device="cuda")


def classified(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def resnet50(batch, steps):
    from torchvision.models import resnet50 as model
    train(model(num_classes=100), images(batch, steps, 128), classified, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9))


def vit(batch, steps):
    from torchvision.models import VisionTransformer
    train(VisionTransformer(image_size=160, patch_size=16, num_layers=4, num_heads=12, hidden_dim=768, mlp_dim=3072, num_classes=100), images(batch, steps, 160), classified)


def timm_model(name, size):
    def program(batch, steps):
        import timm
        train(timm.create_model(name, pretrained=False, num_classes=100), images(batch, steps, size), classified)
    return program


def gan(batch, steps):
    def up(a, b, stride=2):
        return [nn.ConvTranspose2d(a, b, 4, stride, 1 if stride == 2 else 0, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    def down(a, b):
        return [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]

    makes = nn.Sequential(*up(100, 512, 1), *up(512, 256), *up(256, 128), *up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()).cuda()
    judges = nn.Sequential(*down(3, 64), *down(64, 128), *down(128, 256), *down(256, 512), nn.Conv2d(512, 1, 4), nn.Flatten()).cuda()
    optimizers = [torch.optim.Adam(m.parameters(), lr=2e-4) for m in (makes, judges)]
    loss = nn.functional.binary_cross_entropy_with_logits
    yes, no = torch.ones(batch, 1, device="cuda"), torch.zeros(batch, 1, device="cuda")
    for _ in range(steps):
        made = makes(torch.randn(batch, 100, 1, 1, device="cuda"))
        optimizers[1].zero_grad()
        (loss(judges(torch.rand(batch, 3, 64, 64, device="cuda")), yes) + loss(judges(made.detach()), no)).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss(judges(made), yes).backward()
        optimizers[0].step()


def gpytorch(batch, steps):
    import gpytorch as gp

    class Process(gp.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gp.means.ConstantMean()
            self.covar_module = gp.kernels.ScaleKernel(gp.kernels.RBFKernel())

        def forward(self, x):
            return gp.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.rand(96 * batch, 4, device="cuda")
    y = torch.sin(6 * x.sum(1))
    likelihood = gp.likelihoods.GaussianLikelihood().cuda()
    model = Process(x, y, likelihood).cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    marginal = gp.mlls.ExactMarginalLogLikelihood(likelihood, model)
    with gp.settings.max_cholesky_size(1 << 20):  # an iterative solver makes other requests each time
        for _ in range(steps):
            optimizer.zero_grad()
            (-marginal(model(x), y)).backward()
            optimizer.step()


@torch.no_grad()
def streams(batch, steps):
    """Inference on four streams beside each other, with texts of different lengths."""
    model = gpt2_model().cuda().eval()
    beside = [torch.cuda.Stream() for _ in range(4)]
    for _ in range(steps):
        kept = []
        for n, s in zip(lengths(4, 96), beside):
            s.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(s):
                kept.append(model(torch.randint(8192, (batch, n), device="cuda")).logits.float().softmax(-1))
        torch.cuda.synchronize()


def pools(batch, steps):
    """Private pools: one that two graphs of inference share, one of a graph of a training step, and a MemPool; beside
    them tensors of the usual pool, before, between and after."""
    torch.cuda.set_stream(torch.cuda.Stream())
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = [torch.randn(64 * batch >> i, 1024, device="cuda") for i in range(3)]

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(inputs[0]).pow(2).mean()
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is loaded lazily is loaded before a capture
        for _ in range(2):
            step()
            model(inputs[1])
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graphs, kept = [torch.cuda.CUDAGraph() for _ in range(3)], []
    with torch.cuda.graph(graphs[0]), torch.no_grad():
        kept.append(model(inputs[1]))
    kept.append(torch.randn(3 << 20, device="cuda"))
    with torch.cuda.graph(graphs[1], pool=graphs[0].pool()), torch.no_grad():
        kept.append(model(inputs[2]))
    with torch.cuda.graph(graphs[2]):
        step()
    own = torch.cuda.MemPool()
    for i in range(steps):
        for g in graphs:
            g.replay()
        with torch.cuda.use_mem_pool(own):
            kept.append(torch.randn((i % 3 + 1) * batch << 16, device="cuda"))
            del kept[-1 if i % 2 else 1]
        with torch.no_grad():
            usual = [torch.randn((i % 4 + 1) * batch << 15, device="cuda") for _ in range(3)]
            usual.append(model(usual[0][:1 << 20].view(-1, 1024)))
    torch.cuda.synchronize()
    del usual, g, graphs, kept[:]
    del own
    for _ in range(2):  # the second time the gradients that the graph made are gone, too
        torch.cuda.empty_cache()
        step()


KEPT = []  # until the program ends


def annotated(batch, steps):
    """Each part of a step has an annotation of its own, and one of them keeps what it makes."""
    model = gpt2_model().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    KEPT.extend([model, optimizer])
    part = torch.profiler.record_function
    for x in texts(batch, steps, 8192):
        with part("forward"):
            loss = labelled(model, x)
        with part("backward"):
            loss.backward()
        with part("update"):
            optimizer.step()
            optimizer.zero_grad()
            with part("history"):
                KEPT.append(torch.empty(batch << 16, device="cuda"))


def compiled(batch, steps):
    """torch.compile makes two graphs of a model, each of which keeps what it makes."""
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(512, 2048), nn.Linear(2048, 512)

        def forward(self, x):
            y = self.first(x).relu()
            torch._dynamo.graph_break()
            return y, self.second(y).relu()

    model = torch.compile(Broken().cuda())
    with torch.no_grad():
        for _ in range(steps):
            KEPT.append(model(torch.randn(batch << 4, 512, device="cuda")))


def ranked(wrap):
    """A rank of several, of which torchrun starts one for each GPU."""
    def program(batch, steps):
        import torch.distributed as dist
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
        train(wrap(gpt2_model().cuda()), texts(batch, steps, 8192), labelled)
        torch.cuda.synchronize()
        dist.barrier()
    return program


def ddp(model):
    return nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])


def fsdp2(model):
    from torch.distributed.fsdp import fully_shard
    for block in model.transformer.h:
        fully_shard(block)
    return fully_shard(model)


PROGRAMS = {
    "gpt2": gpt2, "bert": bert, "llama": llama, "peft": peft, "vit": vit, "mixer": timm_model("mixer_s16_224", 224),
    "convnext": timm_model("convnext_tiny", 128), "resnet50": resnet50, "gan": gan, "lstm": lstm, "gpytorch": gpytorch,
    "streams": streams, "pools": pools, "annotated": annotated, "compiled": compiled, "ddp": ranked(ddp), "fsdp2": ranked(fsdp2),
}


def main():
    name, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    torch.backends.cudnn.enabled = os.environ.get("WHATIF_CUDNN") != "off"
    limit = int(os.environ.get("WHATIF_LIMIT", 0))
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    failed = False
    snapshot = os.environ.get("WHATIF_SNAPSHOT", "").replace(".pickle", os.environ.get("RANK", "") + ".pickle")
    try:
        if os.environ.get("WHATIF_LATE"):
            PROGRAMS[name](batch, steps)
        if snapshot:
            more = {"annotated": {"global_record_annotations": True}, "compiled": {"compile_context": True}}.get(name, {})
            torch.cuda.memory._record_memory_history(max_entries=1 << 20, stacks="python", **more)
        with torch.profiler.record_function("the program"):
            PROGRAMS[name](batch, steps)
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        failed = True
    if snapshot:
        torch.cuda.memory._dump_snapshot(snapshot)
    stats = torch.cuda.memory_stats()
    checkpoint("trained", peak=torch.cuda.max_memory_reserved(), failed=failed, retries=stats["num_alloc_retries"],
               tensors=stats["allocation.all.allocated"], requested=stats["requested_bytes.all.allocated"],
               needed=stats["requested_bytes.all.peak"])
    if name in ("ddp", "fsdp2"):
        torch.distributed.destroy_process_group()


main()
