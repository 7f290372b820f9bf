"""Runs one training from its RunSpec to a folder that records it, however it ends."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning

from zoo import models, objectives, registry
from zoo.config import Config
from zoo.cost import memory_check
from zoo.data import cache
from zoo.data.baselines import stuck
from zoo.data.cache import Corpus
from zoo.data.datamodule import Data
from zoo.errors import ZooError
from zoo.generation import prompting
from zoo.launch.run_spec import RunSpec
from zoo.tracking import status
from zoo.tracking.record import RunRecord
from zoo.training import fitting, resume, trainer
from zoo.training.callbacks import LossLogger
from zoo.training.divergence import Diverged, refuse_metrics
from zoo.training.module import LMModule
from zoo.training.signals import Interrupted
from zoo.utils import allocator, distributed, files, locks


def run(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """Train into a folder, resuming what it holds; returns the content of summary.json.

    Raises Diverged where a number is no longer finite, Interrupted where the run is asked to stop,
    and any other error, each after it is recorded.
    """
    config = spec.config
    record = RunRecord(config, folder, spec.overrides)
    rank_zero, begun = distributed.is_rank_zero(), time.perf_counter()
    with (
        locks.alone_in(folder) if rank_zero else contextlib.nullcontext(),
        _recording_end(record),
        _finishing_wandb(),
    ):
        if rank_zero and not (folder / "config.yaml").exists():
            record.write_config()  # a resumed run writes its own when training starts
        fitting.use_threads(config)
        record.add_provenance()
        _train(spec, folder, record)
        record.update(wall_seconds=time.perf_counter() - begun)
    return record.summary


def _train(spec: RunSpec, folder: Path, record: RunRecord) -> None:
    """The phases of a run: data, model and its cost, resume point, training, results."""
    config, model = spec.config, spec.model
    trainer.refuse_replacements(config["trainer"])
    if config["trainer"]["keep_memory"]:
        allocator.keep_freed()
    corpus = _prepare_data(config, record)
    objectives.check(config, model)
    _record_cost(spec, record)
    module = _build_module(config, model, corpus, record)
    data = _build_data(config, corpus, module)
    start = resume.find(folder / "checkpoints", model, config, data)
    resume.put_damaged_aside(start, record)
    loss_logger = LossLogger(config["trainer"]["log_every"], config["trainer"]["checkpoint_every"])
    fitted = fitting.fit(config, record, module, data, start, loss_logger)
    _record_results(config, record, fitted, module, corpus, loss_logger)


def _prepare_data(config: Config, record: RunRecord) -> Corpus:
    """Load the text as tokens, building its cache where there is none."""
    source = registry.build("data", config["data"])
    tokenizer = registry.build("tokenizer", config["tokenizer"])
    corpus = cache.load(source, tokenizer, stream=config["loader"]["stream"])
    if not corpus.summary["splits"]["val"]["bytes"]:
        raise ZooError(
            "there is no text to validate on: give data.val_fraction above 0, or more text"
        )
    about = dict(corpus.summary)
    record.update(yardsticks=about.pop("yardsticks"), data=about)
    return corpus


def _record_cost(spec: RunSpec, record: RunRecord) -> None:
    """Record what the model, still on the meta device, costs, and compare it with free memory."""
    record.update(
        parameters=sum(spec.parameters.values()),
        parameters_by_part=spec.parameters,
        flops_per_token=spec.flops_per_token,
    )
    needed, warning = memory_check.compared(spec.config, spec.model)
    record.update(memory=needed)
    if warning and distributed.is_rank_zero():
        print(f"warning: {warning}", flush=True)


def _build_module(config: Config, model: Any, corpus: Corpus, record: RunRecord) -> LMModule:
    """Give the model its initial values, and put it with its objective into a LightningModule."""
    settings = config["trainer"]
    if not _is_sharded(config):  # else each rank fills its shard, in LMModule.configure_model
        models.fill(model, seed=config["seed"])
    for stack in model.stacks:
        stack.checkpointing = settings["gradient_checkpointing"]
    if settings["compile"]:
        model.compile()
    module = LMModule(config, model, corpus.tokenizer)
    comparable = module.objective.has_unigram_baseline
    record.update(
        over=module.objective.loss_scope,
        unigram_nats=corpus.summary["unigram_nats"] if comparable else None,
    )
    return module


def _build_data(config: Config, corpus: Corpus, module: LMModule) -> Data:
    loader, documents = config["loader"], None
    if loader["stream"]:
        source = registry.build("data", config["data"])
        documents = source.documents("train", corpus.summary["cuts"])
    return Data(
        corpus,
        batch_size=loader["batch_size"],
        length=loader["length"],
        isolate=loader["isolate"],
        workers=loader["workers"],
        seed=config["seed"],
        accumulate=config["trainer"]["accumulate"],
        eval_length=loader["eval_length"],
        prepare=module.objective.prepare,
        eval_prepare=module.objective.eval_objective.prepare,
        documents=documents,
        shuffle=loader["shuffle"],
        changing="data" in config["changing"],
    )


def _record_results(
    config: Config,
    record: RunRecord,
    fitted: lightning.Trainer,
    module: LMModule,
    corpus: Corpus,
    loss_logger: LossLogger,
) -> None:
    """Write the losses by document and position, the final metrics and a sample."""
    if module.breakdown is not None and fitted.is_global_zero:
        files.write_atomically(record.folder / "evaluation.npz", module.breakdown.dumps())
    metrics = {
        name: value.item() for name, value in fitted.callback_metrics.items()
    } | loss_logger.row
    refuse_metrics(module, metrics, fitted.global_step)
    record.update(metrics=metrics)
    is_stuck = stuck(metrics["val/loss"], record.summary["unigram_nats"])
    record.update(outcome="stuck" if is_stuck else "learned")
    # a sharded model needs all ranks to compute
    if config["trainer"]["sample"] and (_is_sharded(config) or fitted.is_global_zero):
        prompter = prompting.prompter(config, module.model, corpus.tokenizer)
        record.update(sample=prompter.sample(corpus.splits["val"].ids, config["seed"]))
    for logger in fitted.loggers:
        logger.log_hyperparams({"yardsticks": record.summary["yardsticks"]})
        logger.finalize("success")


def _is_sharded(config: Config) -> bool:
    return bool(config["trainer"]["strategy"] == "fsdp")


@contextlib.contextmanager
def _recording_end(record: RunRecord) -> Iterator[None]:
    """Record the status with which a run ends."""
    try:
        yield
        record.update(status=status.FINISHED)
    except Diverged as error:
        record.update(
            status=status.DIVERGED, outcome="diverged", error=str(error), diverged=error.found
        )
        raise
    except (Interrupted, KeyboardInterrupt) as error:
        ending = error if isinstance(error, Interrupted) else Interrupted("Ctrl-C")
        record.update(status=status.INTERRUPTED, error=f"stopped by {ending}")
        raise ending from None
    except BaseException as error:
        record.fail(error)
        raise


@contextlib.contextmanager
def _finishing_wandb() -> Iterator[None]:
    """End W&B's run with this one's exit code, so that the next in this process begins anew."""
    code = 1
    try:
        yield
        code = 0
    finally:
        if "wandb" in sys.modules:
            from zoo.tracking import wandb_logger

            wandb_logger.finish(code)
