"""Hugging Face's Trainer on a GPT-2 with random weights, as torchrun starts it. It is given a folder for its output."""
import os
import sys

from checkpoint import checkpoint

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

checkpoint("ready")
data = [{"input_ids": torch.randint(0, 8192, (256,)), "labels": torch.randint(0, 8192, (256,))} for _ in range(64)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_embd=512, n_layer=8, n_head=8))
args = TrainingArguments(output_dir=sys.argv[1], per_device_train_batch_size=8, max_steps=4, report_to=[], save_strategy="no",
                         gradient_checkpointing=True, ddp_backend="gloo", disable_tqdm=True)
Trainer(model=model, args=args, train_dataset=data).train()
torch.cuda.synchronize()
checkpoint("trained", reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), gpu=torch.cuda.current_device())
