"""Tables of costs and plans for people, and sizes in units that they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


def table(cost: Mapping[str, Any], title: str) -> Any:
    """The cost as a table for people."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        title=Text(title), title_justify="left", show_header=False, box=None, padding=(0, 2)
    )
    shown.add_row("parameters", f"{cost['parameters']:,}")
    for part, number in cost["parameters_by_part"].items():
        shown.add_row(f"  {part}", f"{number:,}", f"{number / cost['parameters']:.1%}")
    shown.add_row(
        "FLOPs per token",
        f"{cost['flops_per_token']:.4g}",
        f"training, at length {cost['length']:,}",
    )
    shown.add_row(
        "  6·N estimate", f"{cost['flops_per_token_6n']:.4g}", "N parameters, embeddings included"
    )
    shown.add_row("  forward", f"{cost['flops_per_token_forward']:.4g}")
    shown.add_row("training FLOPs", f"{cost['training_flops']:.4g}", "all steps")
    shown.add_row("KV cache", size(cost["kv_cache_bytes"]), "per sequence of arch.length, float32")
    shown.add_row("  per token", size(cost["kv_cache_bytes_per_token"]))
    if cost["kv_cache_bytes_per_sequence"]:
        shown.add_row(
            "  at any length", size(cost["kv_cache_bytes_per_sequence"]), "recurrent states"
        )
    shown.add_row(
        "training memory",
        size(cost["training_memory_bytes"]),
        "weights, gradients, optimiser, activations",
    )
    return shown


def plan_table(estimate: Mapping[str, Any], title: str) -> Any:
    """The plan as a table for people."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        title=Text(title), title_justify="left", show_header=False, box=None, padding=(0, 2)
    )
    step, plan = estimate["step"], estimate["plan"]
    gib = 2**30
    shown.add_row(
        "memory per GPU",
        f"{estimate['memory_bytes'] / gib:,.1f} GiB",
        f"of {estimate['available_bytes'] / gib:,.1f} GiB",
    )
    for part, number in estimate["memory"].items():
        shown.add_row(f"  {part}", f"{number / gib:,.2f} GiB")
    parts = (
        "1 micro-batch"
        if step["micro_batches"] == 1
        else f"{step['micro_batches']:,} micro-batches"
    )
    made = f"{step['tokens']:,} tokens in {parts}"
    shown.add_row("per step", f"{step['seconds']:,.3g} s", made)
    shown.add_row("  computing", f"{step['computing']:,.3g} s")
    shown.add_row(
        "  data parallel",
        f"{step['exposed']:,.3g} s",
        f"not hidden, of {step['data_parallel']:,.3g} s",
    )
    shown.add_row("  tensor parallel", f"{step['tensor_parallel']:,.3g} s")
    shown.add_row("  update", f"{step['update']:,.3g} s")
    shown.add_row("MFU", f"{step['mfu']:.1%}", "FLOPs of the model alone")
    shown.add_row("tokens/s", f"{estimate['tokens_per_second_per_gpu']:,.0f}", "per GPU")
    shown.add_row(
        "the run",
        f"{estimate['days']:,.3g} days",
        f"{estimate['tokens']:.4g} tokens, {estimate['steps']:,} steps",
    )
    shown.add_row(
        "",
        f"{estimate['gpu_hours']:,.4g} hours",
        f"of GPU; {estimate['flops']:.4g} FLOPs on {plan['gpus']:,} {plan['gpu']}",
    )
    return shown


def assumption_lines(estimate: Mapping[str, Any]) -> list[Any]:
    """What a plan rests on, as lines to be printed below its table."""
    from rich.text import Text

    return [
        Text("\n  assuming that"),
        *(Text(f"  - {assumption}") for assumption in estimate["assumptions"]),
    ]


def size(number: float) -> str:
    """Bytes in the unit a person would choose."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.4g} {unit}"
        number /= 1024
    return f"{number:,.4g} TiB"
