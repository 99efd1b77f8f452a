"""Hugging Face's generate() on a Llama with random weights."""
import os

from checkpoint import checkpoint

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import LlamaConfig, LlamaForCausalLM

checkpoint("ready")
config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
                     num_key_value_heads=8, vocab_size=32000)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
prompt = torch.randint(0, 32000, (8, 64), device="cuda")
out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False, pad_token_id=0)
torch.cuda.synchronize()
checkpoint("generated", reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), tokens=out.numel())
