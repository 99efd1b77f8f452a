"""Lightning's Trainer on its own demo, a Transformer, with random tokens."""
from checkpoint import checkpoint

checkpoint("ready")  # its libraries are loaded while it is traced
import torch  # noqa: E402
from lightning.pytorch import Trainer  # noqa: E402
from lightning.pytorch.demos.transformer import LightningTransformer  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class Demo(LightningTransformer):
    def prepare_data(self):
        """It would download a text."""


def main():
    tokens = torch.randint(0, 8192, (64, 36))
    data = DataLoader(TensorDataset(tokens[:, :-1].clone(), tokens[:, 1:].clone()), batch_size=8)
    trainer = Trainer(max_steps=12, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False)
    model = Demo(vocab_size=8192)
    trainer.fit(model, train_dataloaders=data)
    torch.cuda.synchronize()
    checkpoint("trained", reserved=torch.cuda.memory_reserved(), allocated=torch.cuda.memory_allocated(), steps=trainer.global_step)


main()
