"""Shows the result of a run: its metrics and baselines, its folder, and what to type next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from zoo.config.suggestions import ways
from zoo.cost import size
from zoo.errors import command
from zoo.utils import tables

BASELINES = {
    "unigram": "byte frequencies",
    "bigram": "byte pairs",
    "xz": "the compressor, on this text alone",
}
WAYS_ON = ("more steps", "another optim.lr", "a longer schedule.warmup", "residual=pre")
TRY = {  # a prompt by the objective, and what the model does with it
    "mlm": ("def [MASK]ain(", "let it fill the mask"),
    "span": ("def main(): return [MASK] + 1", "let it fill the gap"),
}


def show(summary: dict[str, Any], folder: Path, console: Console | None = None) -> None:
    """Print the result of a finished run."""
    console = console or tables.console()
    metrics, baselines, data = summary["metrics"], summary["yardsticks"], summary["data"]
    result = Table(
        title="Validation", title_justify="left", box=None, padding=(0, 2), show_header=False
    )
    result.add_row("loss", f"{metrics['val/loss']:.4f}", "nats per token")
    result.add_row("perplexity", f"{metrics['val/perplexity']:.4g}")
    # the baselines measure the whole text, each byte by those before it
    over = summary.get("over")
    if "val/bits_per_byte" in metrics:
        result.add_row(
            "[bold]bits per byte",
            f"[bold]{metrics['val/bits_per_byte']:.3f}",
            f"of {over or 'the same text:'}",
        )
    for name, what in BASELINES.items() if over is None else ():
        result.add_row(f"  {name}", f"{baselines[name]:.3f}", what)
    cost = Table(title="Cost", title_justify="left", box=None, padding=(0, 2), show_header=False)
    cost.add_row("parameters", f"{summary['parameters']:,}")
    cost.add_row("FLOPs per token", f"{summary['flops_per_token']:.3g}")
    cost.add_row("tokens", f"{summary['tokens']:,}", f"{summary['steps']:,} steps")
    if summary["tokens_per_second"]:
        cost.add_row("tokens/s", f"{summary['tokens_per_second']:,.0f}")
    cost.add_row("peak memory", size(summary["peak_memory_bytes"]))
    documents = "streamed" if data["documents"] is None else f"{data['documents']:,} documents"
    cost.add_row(
        "data", documents, f"{size(data['bytes'])}, fingerprint {data['fingerprint'][:12]}"
    )
    console.print()
    console.print(
        Text(
            ", ".join(f"{group}={name}" for group, name in summary["choices"].items()), style="dim"
        )
    )
    tables.show(result, console)
    tables.show(cost, console)
    if summary.get("outcome") == "stuck":
        console.print(
            Text(
                "The model is no better than the unigram baseline"
                f" ({summary['unigram_nats']:.4f} nats): it is stuck, or stopped early.\n"
                f"Try {ways(summary['choices'], *WAYS_ON)}.",
                style="yellow",
            )
        )
    if summary.get("sample"):
        console.print(
            Panel(
                Text(summary["sample"].strip("\n")),
                title="a sample",
                title_align="left",
                expand=False,
            )
        )
    console.print(
        Text.assemble(("The run is in ", ""), (str(folder), "bold"), "\n"), soft_wrap=True
    )
    for line, what in _next(summary, folder):
        console.print(Text.assemble(("  " + line, "cyan"), f"\n      {what}"), soft_wrap=True)


def _next(summary: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    mine = summary["choices"]
    others = {"norm": "layer,rms", "pos": "learned,rope"}
    sweep = [f"{group}={both}" for group, both in others.items() if mine.get(group)]
    prompt, use = TRY.get(mine.get("objective", ""), ("def ", "let it write"))
    commands = [
        (command("zoo.generate", f"ckpt={folder}", f"prompt={prompt}"), use),
        (
            command("zoo.train", "-m", *sweep, "seed=0,1,2"),
            "compare parts, one run for each combination",
        ),
        (command("zoo.components"), "all the parts there are"),
    ]
    if summary.get("wandb") == "offline":
        latest = str(folder / "wandb" / "latest-run")
        commands += [
            (shlex.join(["wandb", "leet", latest]), "look at the curves, offline"),
            (shlex.join(["wandb", "sync", latest]), "send them to wandb.ai, after `wandb login`"),
        ]
    return commands
