"""accelerate's loop around a BERT of transformers with random weights: bfloat16, gradients over two batches."""
import os

from checkpoint import checkpoint

checkpoint("ready")  # its libraries are loaded while it is traced
os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification  # noqa: E402


def main():
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = BertForSequenceClassification(BertConfig(vocab_size=8192, hidden_size=256, num_hidden_layers=6, num_attention_heads=4,
                                                     intermediate_size=1024, num_labels=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = DataLoader(TensorDataset(torch.randint(0, 8192, (128, 64)), torch.randint(0, 3, (128,))), batch_size=16, shuffle=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 8)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    model.train()
    for tokens, labels in data:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=labels).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
    checkpoint("trained", reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), loss=float(loss))


main()
