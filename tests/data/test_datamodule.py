"""The data module: ranks, evaluation, and resuming in a Lightning Trainer."""

import itertools
from types import SimpleNamespace

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from zoo.data.cache_format import Corpus
from zoo.data.datamodule import Data
from zoo.data.tokenizers import Byte
from zoo.errors import ZooError
from zoo.objectives import IGNORE
from zoo.registry import build

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def data(tokens, **options):
    corpus = Corpus(
        {"train": tokens, "val": tokens, "test": tokens}, Byte(), {"fingerprint": "one"}
    )
    settings = {"batch_size": 4, "length": 4, "isolate": False, "workers": 0, "seed": 0, **options}
    return Data(corpus, **settings)


def labels(batches):
    return [
        label
        for batch in batches
        for label in batch["labels"].flatten().tolist()
        if label != IGNORE
    ]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_sees_each_label_once_over_all_ranks(tokens, world):
    seen = []
    for rank in range(world):
        module = data(tokens, batch_size=6)
        module.trainer = SimpleNamespace(global_rank=rank, world_size=world)
        seen += labels(module.val_dataloader())
        assert labels(module.test_dataloader()) == labels(module.val_dataloader())
    assert sorted(seen) == sorted(tokens.ids[1:].tolist())


def test_ranks_of_a_trainer_divide_each_step(tokens):
    whole = next(iter(data(tokens).train_dataloader()))
    halves = []
    for rank in range(2):
        module = data(tokens)
        module.trainer = SimpleNamespace(global_rank=rank, world_size=2)
        halves.append(next(iter(module.train_dataloader()))["tokens"])
    assert torch.equal(torch.cat(halves), whole["tokens"])


@pytest.mark.parametrize("choice", [{"name": "mlm", "rate": 0.5}, {"name": "span", "density": 0.5}])
@pytest.mark.parametrize("workers", [0, 2])
def test_masking_does_not_depend_on_ranks_micro_batches_or_workers(tokens, choice, workers):
    objective = build("objective", choice, Byte(), 16)

    def step(world, accumulate, loader):
        rows = []
        for part in range(accumulate):
            for rank in range(world):
                module = data(
                    tokens,
                    length=16,
                    workers=workers,
                    accumulate=accumulate,
                    prepare=objective.prepare,
                )
                module.trainer = SimpleNamespace(global_rank=rank, world_size=world)
                rows += list(itertools.islice(getattr(module, loader)(), part + 1))[part][
                    "labels"
                ].tolist()
        return rows

    whole = step(1, 1, "train_dataloader")
    assert len(whole) == 4
    assert whole == step(2, 1, "train_dataloader") == step(2, 2, "train_dataloader")
    assert len(set(map(tuple, whole))) == 4, (
        "also of the blocks that a batch larger than an epoch holds twice"
    )
    module = data(tokens, length=16, prepare=objective.prepare)
    once, again, test = (
        next(iter(loader()))["labels"].tolist()
        for loader in (
            module.val_dataloader,
            module.val_dataloader,
            module.test_dataloader,
        )
    )
    assert once == again != test


def test_text_shorter_than_a_block_is_refused(tokens):
    assert len(data(tokens, length=44).train) == 1
    with pytest.raises(
        ZooError,
        match=r"the train split has 45 tokens.*loader\.length=45.*give more text or a smaller",
    ):
        data(tokens, length=45)


class Recorder(lightning.LightningModule):
    """Learns nothing and remembers the tokens of every batch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append(batch["tokens"].tolist())
        return self.weight.sum()

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("workers", [0, 2])
def test_run_resumed_in_mid_epoch_sees_the_same_batches(tokens, tmp_path, workers):
    def run(resume=None):
        model = Recorder()
        keep = ModelCheckpoint(
            tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, enable_version_counter=False
        )
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=8,
            max_epochs=-1,
            accumulate_grad_batches=2,
            use_distributed_sampler=False,
            val_check_interval=6,
            check_val_every_n_epoch=None,
            limit_val_batches=1,
            callbacks=[keep],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(
            model, data(tokens, workers=workers, accumulate=2), ckpt_path=resume, weights_only=False
        )
        return model.seen

    whole = run()
    assert len(whole) == 16
    for step in (1, 3, 5):
        assert run(tmp_path / f"step={step}.ckpt") == whole[2 * step :]
