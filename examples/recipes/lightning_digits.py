"""Lightning: its Trainer over accdp, with any number of ranks on a GPU.

Needs: lightning (2.6 was tried; requirements/recipes.txt has it). Lightning refuses `devices=[0, 0]`, since it takes a
rank's device from its place on the node. `OneDeviceEach` tells it that every rank is a node of its own with one device,
the one that the launcher left visible; so ranks that share a GPU are nothing special.

    accdp run -n 2 examples/recipes/lightning_digits.py
    accdp run --ranks-per-gpu 4 examples/recipes/lightning_digits.py
"""

from __future__ import annotations

import digits
import lightning as L
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader


class OneDeviceEach(ClusterEnvironment):
    """The ranks of any launcher that accdp understands, one device each.

    Forms the group itself, and Lightning then uses it: no address and no port have to be agreed on. Give the Trainer
    ``plugins=[environment], devices=1, num_nodes=environment.world_size()``. Lightning's local rank is 0 everywhere, so
    a data module that downloads needs ``prepare_data_per_node = False``.
    """

    def __init__(self) -> None:
        if not dist.is_initialized():
            dist.init_process_group("accdp")
        self._rank, self._size = dist.get_rank(), dist.get_world_size()

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        raise RuntimeError("the group is there already; nobody needs its address")

    @property
    def main_port(self) -> int:
        raise RuntimeError("the group is there already; nobody needs its port")

    @staticmethod
    def detect() -> bool:
        return dist.is_initialized() and dist.get_backend() == "accdp"

    def world_size(self) -> int:
        return self._size

    def set_world_size(self, size: int) -> None:
        self._check("world size", size, self._size)

    def global_rank(self) -> int:
        return self._rank

    def set_global_rank(self, rank: int) -> None:
        self._check("rank", rank, self._rank)

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return self._rank

    @staticmethod
    def _check(what: str, asked: int, found: int) -> None:
        if asked != found:
            raise ValueError(
                f"Lightning wants {what} {asked}, but the launcher gave {found}: expected devices=1 and "
                "num_nodes=environment.world_size() in the Trainer"
            )


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = digits.network()
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)

    def on_train_end(self) -> None:
        self.line = digits.summary("lightning", self.model, self.losses)  # here, because fit() ends the group


def main() -> None:
    environment = OneDeviceEach()
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        num_nodes=environment.world_size(),
        plugins=[environment],
        strategy=DDPStrategy(process_group_backend="accdp"),
        max_steps=digits.STEPS,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Digits()
    trainer.fit(module, DataLoader(digits.dataset(), digits.BATCH_SIZE, shuffle=True, drop_last=True))
    if environment.global_rank() == 0:
        print(module.line, flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
