"""Hugging Face's Trainer on a GPT-2 with random weights, as torchrun starts it.

It waits for the file go in the directory that it is given before its first CUDA
call, writes what it holds to a file there when it has trained, and waits for
the file end.
"""
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

place, rank = sys.argv[1], os.environ.get("RANK", "0")


def wait_for(name):
    while not os.path.exists(os.path.join(place, name)):
        time.sleep(0.05)


def tell(name, **values):
    path = os.path.join(place, f"{name}.{rank}")
    with open(path + ".part", "w") as f:
        json.dump({"pid": os.getpid(), **values}, f)
    os.rename(path + ".part", path)


tell("ready")
wait_for("go")
data = [{"input_ids": torch.randint(0, 8192, (256,)), "labels": torch.randint(0, 8192, (256,))} for _ in range(64)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_embd=512, n_layer=8, n_head=8))
args = TrainingArguments(output_dir=place, per_device_train_batch_size=8, max_steps=4, report_to=[], save_strategy="no",
                         gradient_checkpointing=True, ddp_backend="gloo", disable_tqdm=True)
Trainer(model=model, args=args, train_dataset=data).train()
torch.cuda.synchronize()
tell("trained", reserved=torch.cuda.memory_reserved(), gpu=torch.cuda.current_device())
wait_for("end")
