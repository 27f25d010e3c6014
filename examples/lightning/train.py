"""Lightning's Trainer: a small autoencoder. The job file has `checkpoints: {auto: true}`; nothing else is needed."""

import argparse
import os

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(pl.LightningModule):
    """Squeezes vectors of 16 numbers that lie on a plane through 2 numbers."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(nn.Linear(16, 2), nn.Linear(2, 16))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """One batch of shape (batch, 16)."""
        (x,) = batch
        loss = nn.functional.mse_loss(self.layers(x), x)
        if self.trainer.is_global_zero and self.trainer.is_last_batch:
            print(f"metric loss={loss.item():.5f} epoch={self.current_epoch}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    options = parser.parse_args()

    pl.seed_everything(0)
    vectors = torch.randn(1024, 2) @ torch.randn(2, 16)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = pl.Trainer(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=world // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if world > 1 else "auto",
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Autoencoder(options.learning_rate)
    trainer.fit(model, DataLoader(TensorDataset(vectors), batch_size=32, shuffle=True))
    if trainer.is_global_zero:
        torch.save(model.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))


if __name__ == "__main__":
    main()
