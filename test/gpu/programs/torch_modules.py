"""A model whose forward leaves activations, and with "truth" what each of its modules made of them.

    torch_modules.py gpt2 | timm | peft [truth]

With "truth" hooks say when a module's forward begins and ends, and PyTorch's recorder has the
order of what was allocated. Without, nothing of either is in the program.
"""
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
from checkpoint import checkpoint  # noqa: E402

checkpoint("ready")
import torch  # noqa: E402


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=256, n_head=8, vocab_size=4096)), of_tokens


def peft():
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel
    return get_peft_model(GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=8, vocab_size=4096)), LoraConfig(target_modules=["c_attn"], lora_dropout=0.1)), of_tokens


def timm():
    from timm import create_model
    return create_model("vit_tiny_patch16_224", pretrained=False, num_classes=100), lambda: model(torch.randn(8, 3, 224, 224, device="cuda")).square().mean()


def of_tokens():
    tokens = torch.randint(0, 4096, (4, 128), device="cuda")
    return model(input_ids=tokens, labels=tokens).loss


class Truth:
    """Whose forward allocated what is live: the innermost module's, by its name in the model."""

    def __init__(self):
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1 << 20)
        self.first, self.running, self.spans = self.count(), [None], []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self.change(lambda: self.running.append(name)))
            module.register_forward_hook(lambda *_: self.change(self.running.pop))

    def count(self):
        """How many tensors were allocated so far."""
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    def change(self, how):
        self.spans.append((self.count() - self.first, self.running[-1]))  # up to here
        how()

    def bytes(self):
        self.change(lambda: None)
        events = torch.cuda.memory._snapshot()
        made = [e["addr"] for e in events["device_traces"][0] if e["action"] == "alloc"]
        if len(made) != self.count() - self.first:
            raise RuntimeError(f"the recorder has {len(made)} of {self.count() - self.first} allocations")
        maker, begin = {}, 0  # the last allocation at an address counts
        for end, name in self.spans:
            maker.update(dict.fromkeys(made[begin:end], name))
            begin = end
        sums = {}
        for segment in torch.cuda.memory_snapshot():
            for b in segment["blocks"]:
                if b["state"] == "active_allocated" and maker.get(b["address"]) is not None:
                    sums[maker[b["address"]]] = sums.get(maker[b["address"]], 0) + b["size"]
        return sums


torch.manual_seed(0)
model, forward = globals()[sys.argv[1]]()
model.cuda()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(3):
    forward().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
checkpoint("warm")  # how modules are called is known from here on
torch._C._cuda_clearCublasWorkspaces()  # whose forward comes first makes them anew
truth = Truth() if sys.argv[2:] == ["truth"] else None
loss = forward()
torch.cuda.synchronize()
checkpoint("forward", modules=truth and truth.bytes(), allocated=torch.cuda.memory_allocated())
