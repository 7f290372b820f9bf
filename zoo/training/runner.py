"""One run, from a configuration to a folder that tells the whole story, also when the story ends badly."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from zoo import config as configuration
from zoo import cost, models, objectives, registry
from zoo.checkpoints import reading, weights
from zoo.config import Config
from zoo.cost import gpus, memory_check
from zoo.data import cache
from zoo.data.baselines import stuck
from zoo.data.datamodule import Data, is_dead_worker, raise_dead_worker_in_next
from zoo.errors import ZooError, first_line
from zoo.generation import prompting
from zoo.tracking import provenance
from zoo.tracking.metrics_file import MetricsFile
from zoo.training import callbacks as hooks
from zoo.training import monitors
from zoo.training.callbacks import BestCheckpoint, SeedEverything, Watch
from zoo.training.console import LogPrinter, ProgressBar
from zoo.training.divergence import Diverged, refuse_metrics
from zoo.training.fsdp import Sharded
from zoo.training.module import LMModule
from zoo.training.signals import Interrupted, SignalCheckpoint
from zoo.utils import allocator, distributed, files, library_warnings, locks, system
from zoo.utils.progress import doing

log = logging.getLogger("zoo")


def run(config: Config, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Train what is configured into a folder, going on with what it holds; returns the content of summary.json.

    Raises Diverged when a number stops being finite, Interrupted when asked to stop, and whatever else went wrong, each
    after it has been written into summary.json.
    """
    summary: dict[str, Any] = {
        "status": "running",
        "error": None,
        "id": uuid.uuid4().hex[:12],
        "started": datetime.now(UTC).isoformat(),
        "overrides": overrides,
        "choices": configuration.choices(config),
        "seed": config["seed"],
    }
    before = files.read_json(folder / "summary.json")
    summary |= {
        key: before[key] for key in ("id", "started") if key in before
    }  # a resumed run is the same run
    main = distributed.is_rank_zero()

    def tell(**news: Any) -> None:
        summary.update(news)
        failed = news.get("status") == "failed"
        if failed and files.read_json(folder / "summary.json").get("status") == "failed":
            return  # another process has said why
        if main or failed:
            files.write_json(folder / "summary.json", summary)

    begun = time.perf_counter()
    with (
        locks.alone_in(folder) if main else contextlib.nullcontext(),
        _telling_how_it_ends(tell),
        _finishing_wandb(),
    ):
        if (
            main and not (folder / "config.yaml").exists()
        ):  # else, what is there holds until the run has gone on
            _write_config(config, folder)
        _use_threads(config["trainer"])
        used = provenance.sources(config)
        goes_on = any((folder / "checkpoints").glob("*.ckpt"))
        tell(
            git_sha=provenance.git_sha(),
            versions=provenance.versions(),
            host=provenance.hardware(),
            sources=used,
            earlier_sources=provenance.earlier(before, used) if goes_on else [],
        )
        _train(config, folder, summary, tell)
        tell(wall_seconds=time.perf_counter() - begun)
    return summary


def _use_threads(settings: dict[str, Any]) -> None:
    """As many as asked for; once more when training starts, as Lightning sets them where it starts processes."""
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])


def _write_config(config: Config, folder: Path) -> None:
    from omegaconf import OmegaConf

    files.write_atomically(folder / "config.yaml", OmegaConf.to_yaml(config).encode())


@contextlib.contextmanager
def _telling_how_it_ends(tell: Any) -> Iterator[None]:
    try:
        yield
        tell(status="finished")
    except Diverged as error:
        tell(status="diverged", outcome="diverged", error=str(error), diverged=error.found)
        raise
    except (Interrupted, KeyboardInterrupt) as error:
        tell(status="interrupted", error=f"stopped by {error or 'Ctrl-C'}")
        raise error if isinstance(error, Interrupted) else Interrupted("Ctrl-C") from None
    except OSError as error:
        with contextlib.suppress(OSError):  # the disk may be full; what was written before stays
            tell(status="failed", error=f"{type(error).__name__}: {error}")
        raise
    except BaseException as error:
        tell(
            status="failed",
            error=str(error) if isinstance(error, ZooError) else f"{type(error).__name__}: {error}",
        )
        raise


@contextlib.contextmanager
def _finishing_wandb() -> Iterator[None]:
    """Several runs in one process need the one before to be over, and a dashboard to know how it went."""
    code = 1
    try:
        yield
        code = 0
    finally:
        if "wandb" in sys.modules:
            from zoo.tracking import wandb_logger as wandb_logger_module

            wandb_logger_module.finish(code)


def _train(config: Config, folder: Path, summary: dict[str, Any], tell: Any) -> None:
    settings, loader = config["trainer"], config["loader"]
    _refuse_to_replace(settings)
    if settings["keep_memory"]:
        allocator.keep_freed()
    source, stream = registry.build("data", config["data"]), loader["stream"]
    corpus = cache.load(source, registry.build("tokenizer", config["tokenizer"]), stream=stream)
    if not corpus.summary["splits"]["val"]["bytes"]:
        raise ZooError(
            "there is no text to validate on: give data.val_fraction above 0, or more text"
        )
    imagined = cost.made(config)  # which takes no memory
    objectives.check(config, imagined)
    by_part, about = cost.parameters(imagined), dict(corpus.summary)
    tell(
        yardsticks=about.pop("yardsticks"),
        data=about,
        parameters=sum(by_part.values()),
        parameters_by_part=by_part,
        flops_per_token=cost.BACKWARD_AND_FORWARD * cost.flops(imagined, loader["length"]),
    )
    needed, lacks = memory_check.compared(config, imagined)
    tell(memory=needed)
    if lacks and distributed.is_rank_zero():
        print(f"warning: {lacks}", flush=True)
    sharded = (
        settings["strategy"] == "fsdp"
    )  # then every process makes its own part, in zoo.training.module
    model = models.build(config, seed=config["seed"], device="meta" if sharded else "cpu")
    for stack in model.stacks:
        stack.checkpointing = settings["gradient_checkpointing"]
    if settings["compile"]:
        model.compile()
    module = LMModule(config, model, corpus.tokenizer)
    tell(
        over=module.objective.loss_scope,
        unigram_nats=about["unigram_nats"] if module.objective.has_unigram_baseline else None,
    )
    data = Data(
        corpus,
        batch_size=loader["batch_size"],
        length=loader["length"],
        isolate=loader["isolate"],
        workers=loader["workers"],
        seed=config["seed"],
        accumulate=settings["accumulate"],
        eval_length=loader["eval_length"],
        prepare=module.objective.prepare,
        eval_prepare=module.objective.eval_objective.prepare,
        documents=source.documents("train", corpus.summary["cuts"]) if stream else None,
        shuffle=loader["shuffle"],
        changing="data" in config["changing"],
    )
    last = folder / "checkpoints" / "last.ckpt"
    start, resume_step, damaged = _start(last.parent, model, config, data)
    if damaged:
        note = f"{'; '.join(damaged.values())}: going on from the one before, {start}"
        log.warning(note)
        tell(note=note)
        if distributed.is_rank_zero():
            for path in damaged:  # out of the way, else it would take the place of the one before
                path.replace(path.with_suffix(".damaged"))
    watch = Watch(settings["log_every"], settings["checkpoint_every"])
    begun = time.perf_counter()
    with (
        SignalCheckpoint(last, settings["checkpoint_every"]) as saving,
        memory_check.told_of(config),
    ):
        callbacks = [
            watch,
            *monitors.asked_for(settings, watch, summary["flops_per_token"]),
            SeedEverything(config["seed"]),
            LambdaCallback(
                on_fit_start=lambda *_: _use_threads(settings),
                on_train_start=raise_dead_worker_in_next,
            ),
        ]
        if distributed.is_rank_zero():  # it goes on: from here on it is what was asked for now
            callbacks.append(
                LambdaCallback(on_train_start=lambda *_: _write_config(config, folder))
            )
        trainer = _trainer(config, folder, summary, callbacks, saving, resume_step)
        raise_dead_worker_in_next()  # what Lightning finds here it puts back at its end, before the error is looked at
        try:
            trainer.fit(
                module,
                datamodule=data,
                ckpt_path=str(start) if resume_step else None,
                weights_only=True,
            )
            if (
                trainer.global_step > resume_step
                and trainer.global_step % settings["checkpoint_every"]
            ):
                trainer.save_checkpoint(last)
            evaluated = (
                trainer.global_step % min(settings["eval_every"], settings["max_steps"]) == 0
            )  # as in _trainer
            if not evaluated or "val/loss" not in trainer.callback_metrics:
                trainer.validate(module, datamodule=data, verbose=False)
        except BaseException as error:
            if trainer.strategy.launcher is not None and not getattr(error, "agreed", False):
                # the processes that it started, which would wait for this one
                trainer.strategy.launcher.kill(system.KILL)
            if isinstance(error.__context__, ZooError) and not isinstance(error, ZooError):
                raise error.__context__ from None  # Lightning's clean-up fails where no batch has been read
            if isinstance(
                error, torch.distributed.DistNetworkError | torch.distributed.DistStoreError
            ):
                raise ZooError(
                    f"the processes that train together cannot reach each other ({first_line(error)}): unset"
                    " MASTER_ADDR and MASTER_PORT, or give a port that is free"
                ) from error
            if is_dead_worker(error):
                raise ZooError(
                    f"a process that reads data died ({first_line(error).rstrip('. ')}): where memory was short,"
                    " lower loader.workers; then go on by resume=auto"
                ) from error
            raise
        finally:  # so far it came, however it ends
            summary.update(
                steps=trainer.global_step,
                tokens=trainer.global_step * loader["batch_size"] * loader["length"],
                tokens_per_second=watch.tokens / watch.training_seconds
                if watch.training_seconds
                else None,
                seconds=time.perf_counter() - begun,
                peak_memory_bytes=monitors.peak_memory(),
                skipped_steps=next(
                    (spikes.skipped for spikes in callbacks if isinstance(spikes, monitors.Spikes)),
                    0,
                ),
            )
            summary["mfu"] = monitors.mfu(
                summary["tokens_per_second"], summary["flops_per_token"], trainer
            )
    if module.breakdown is not None and trainer.is_global_zero:
        files.write_atomically(folder / "evaluation.npz", module.breakdown.dumps())
    metrics = {name: value.item() for name, value in trainer.callback_metrics.items()} | watch.row
    refuse_metrics(module, metrics, trainer.global_step)
    tell(metrics=metrics)
    tell(
        outcome="stuck"
        if stuck(summary["metrics"]["val/loss"], summary["unigram_nats"])
        else "learned"
    )
    if settings["sample"] and (
        sharded or trainer.is_global_zero
    ):  # in shards, all of them are needed for it
        prompter = prompting.prompter(config, model, corpus.tokenizer)
        tell(sample=prompter.sample(corpus.splits["val"].ids, config["seed"]))
    for logger in trainer.loggers:
        logger.log_hyperparams({"yardsticks": summary["yardsticks"]})
        logger.finalize("success")


def _start(
    folder: Path, model: torch.nn.Module, config: Config, data: Data
) -> tuple[Path, int, dict[Path, str]]:
    """The newest whole checkpoint and its step, 0 where there is none, and what is wrong with newer ones.

    Raises ZooError where all that there are are damaged, and for one that is not damaged but does not fit, or must not be read.
    """
    damaged: dict[Path, str] = {}
    for path in [
        place
        for name in ("last", "previous", "best")
        if os.path.lexists(place := folder / f"{name}.ckpt")
    ]:
        try:
            checkpoint = reading.read_checkpoint(path, whole=False)
            if (
                config["trainer"]["strategy"] != "fsdp"
            ):  # of whose checkpoints each process looks at its share (zoo.training.fsdp)
                weights.refuse_not_finite(weights.learned(checkpoint, model), path)
        except reading.Damaged as error:
            damaged[path] = str(error)
            continue
        if lost := [
            part
            for part in ("optimizer_states", "lr_schedulers", "loops")
            if not checkpoint.get(part)
        ]:
            damaged[path] = f"{path} is damaged: it has no {lost[0]}"
            continue
        _check_fit(path, checkpoint, model, config, data)
        return path, int(checkpoint["global_step"]), damaged
    if damaged:
        raise ZooError(
            f"{'; '.join(damaged.values())}: there is no other, so delete {folder} to start anew, or choose another"
            " hydra.run.dir"
        )
    return folder, 0, {}


def _check_fit(
    path: Path, checkpoint: dict[str, Any], model: torch.nn.Module, config: Config, data: Data
) -> None:
    """Raises ZooError for a checkpoint of another model, another configuration or other data."""
    weights.check_fit(model, weights.weights(checkpoint), str(path))
    different = configuration.changed(config, checkpoint["zoo"]["config"])
    if different:
        raise ZooError(
            f"{path} is of another configuration (different: {', '.join(different)}): choose another hydra.run.dir,"
            f" or go on with what you change by naming it: changing=[{','.join(different)}]"
        )
    before, now = checkpoint["zoo"]["config"]["optim"]["name"], config["optim"]["name"]
    if before != now:
        raise ZooError(
            f"{path} holds the state of optim={before}, with which optim={now} cannot go on: keep optim={before}, or"
            " choose another hydra.run.dir"
        )
    if checkpoint["global_step"] > config["trainer"]["max_steps"]:
        raise ZooError(
            f"{path} is of step {checkpoint['global_step']}, beyond trainer.max_steps="
            f"{config['trainer']['max_steps']}: give more steps, or choose another hydra.run.dir"
        )
    if checkpoint["Data"] != data.state_dict() and "data" not in config["changing"]:
        raise ZooError(
            f"{path} was made with other data (fingerprint {checkpoint['Data']['fingerprint'][:12]}, now"
            f" {data.fingerprint[:12]}): bring them back, choose another hydra.run.dir, or go on with these by"
            " changing=[data]"
        )


def _trainer(
    config: Config,
    folder: Path,
    summary: dict[str, Any],
    callbacks: list[Any],
    last: SignalCheckpoint,
    resume_step: int,
) -> lightning.Trainer:
    settings = config["trainer"]
    devices = [locks.free_gpu()] if locks.alone_on_a_gpu(settings) else settings["devices"]
    strategy = (
        Sharded(settings["devices"] * settings["nodes"])
        if settings["strategy"] == "fsdp"
        else settings["strategy"]
    )
    if (
        settings["nodes"] > 1
        and not distributed.launched_externally()
        and "MASTER_ADDR" not in os.environ
    ):
        raise ZooError(
            f"trainer.nodes={settings['nodes']} needs its processes started on each machine, by srun or torchrun:"
            " docs/cluster.md shows how"
        )
    library_warnings.lightning()
    evaluated_every = min(settings["eval_every"], settings["max_steps"])
    best = BestCheckpoint(
        str(folder.absolute() / "checkpoints"),
        "best",
        monitor="val/loss",
        save_top_k=1,
        enable_version_counter=False,
    )
    own = [registry.build("callback", choice) for choice in config["callbacks"]]
    callbacks = [*callbacks, *own, best, last]  # in this order: last.ckpt knows of the best
    shows = settings["progress"] and sys.stderr.isatty()
    callbacks.append(
        ProgressBar(callbacks[0], settings["max_steps"]) if shows else LogPrinter(callbacks[0])
    )
    loggers: list[Any] = [MetricsFile(folder / "metrics.csv", resume_step)]
    if distributed.is_rank_zero():
        with doing("starting the logger"):
            logger = registry.build("logger", config["logger"], config, folder, summary)
        loggers += [logger] if logger is not None else []
    try:
        trainer = lightning.Trainer(
            accelerator=settings["accelerator"],
            devices=devices,
            num_nodes=settings["nodes"],
            strategy=strategy,
            precision=settings["precision"],
            max_steps=settings["max_steps"],
            max_epochs=-1,
            accumulate_grad_batches=settings["accumulate"],
            gradient_clip_val=settings["clip"],
            val_check_interval=evaluated_every * settings["accumulate"],
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            log_every_n_steps=settings["log_every"],
            callbacks=callbacks,
            logger=loggers,
            plugins=[hooks.AtomicCheckpoints()],
            profiler=hooks.Unprofiled(),
            enable_model_summary=False,
            enable_progress_bar=shows,
            use_distributed_sampler=False,
            default_root_dir=folder,
        )
    except (
        MisconfigurationException,
        ValueError,
    ) as error:  # no such accelerator here, an unknown strategy
        hint = (
            ": where there is no GPU, choose trainer=cpu, ddp_sim or fsdp_sim"
            if "gpu" in first_line(error).lower()
            else ""
        )
        raise ZooError(f"trainer: {first_line(error).rstrip('.!')}{hint}") from error
    if trainer.precision != settings["precision"]:  # whatever Lightning's reason is
        raise ZooError(
            f"trainer.precision={settings['precision']} would run as {trainer.precision} here: give that one"
        )
    return trainer


def _refuse_to_replace(settings: dict[str, Any]) -> None:
    """Raises ZooError for what Lightning would silently replace by something else on this machine."""
    gpus.refuse_precision(settings["precision"])
    started, asked = int(os.environ.get("WORLD_SIZE", 1)), settings["devices"] * settings["nodes"]
    if started not in (1, asked):
        raise ZooError(
            f"torchrun has started {started} processes, and trainer.devices={settings['devices']} and"
            f" trainer.nodes={settings['nodes']} ask for {asked}, so that each would train for itself: give as many"
        )
