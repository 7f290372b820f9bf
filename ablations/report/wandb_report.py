"""A study in Weights & Biases: its tables and its report as a run, and where there is a network, a
page and a workspace.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from ablations.plan import JUDGED, Plan
from zoo import metrics
from zoo.errors import first_line
from zoo.tracking import wandb_logger
from zoo.utils import extras

JUDGING = f'Metric("Tags") in ["{JUDGED}"]'
SHARED = (
    ".html",
    ".md",
    ".csv",
    ".tex",
    ".json",
)  # of the files in a study's folder, what goes into the artifact


def publish(plan: Plan) -> list[str]:
    """Log what the report wrote into the study's folder; gives lines for people, also where W&B
    fails, which fails no study.
    """
    try:
        return list(_published(plan))
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        return [f"Weights & Biases did not take the report ({why}); it is in {plan.folder}"]


def _published(plan: Plan) -> Iterator[str]:
    logger = plan.jobs()[0].config["logger"]
    mode, group = wandb_logger.reachable_mode(logger["mode"]), logger["group"]
    run = wandb_logger.begin(
        logger,
        plan.folder,
        name="report",
        group=group,
        job_type="report",
        mode=mode,
        tags=[tag for tag in logger["tags"] if tag != JUDGED],
        config={"study": plan.study.name, "hash": plan.study.hash},
    )
    with run:
        tables = {name: table(plan.folder / f"{name}.csv") for name in ("comparison", "runs")}
        run.log({**tables, "report": wandb.Html(str(plan.folder / "report.html"))})
        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "_", group, flags=re.ASCII), "report")
        for path in sorted(plan.folder.iterdir()):
            if path.suffix in SHARED:
                artifact.add_file(str(path))
        run.log_artifact(artifact)
    if mode == "offline":
        latest = shlex.join(["wandb", "sync", f"{plan.folder}/wandb/latest-run"])
        yield f"{latest} sends the report to wandb.ai, after `wandb login`"
    if mode != "online":
        return
    if lacking := extras.missing("wandb_workspaces", "a page of the study in Weights & Biases"):
        yield lacking
        return
    told = (plan.folder / "report.md").read_text(encoding="utf-8")
    for made in (
        page(group, plan.study.metric, told, run),
        workspace(group, plan.study.metric, run),
    ):
        yield f"In Weights & Biases: {made.save().url}"


def table(path: Path) -> wandb.Table:
    """A file of comma-separated values; a column is of numbers where all that stands in it are
    numbers.
    """
    with path.open(newline="", encoding="utf-8") as file:
        columns, *rows = csv.reader(file)
    filled = [_numbers(cells) for cells in zip(*rows, strict=True)]
    return wandb.Table(columns=list(columns), data=[list(row) for row in zip(*filled, strict=True)])


def _numbers(cells: Sequence[str]) -> Sequence[Any]:
    try:
        return [float(cell) if cell else None for cell in cells]
    except ValueError:
        return cells


def page(group: str, metric: str, told: str, place: Any) -> Any:
    """W&B's report: the conclusions in Markdown, panels of the arms over the runs that count, and
    the table of the comparison.

    `place` has the entity and the project. Nothing is sent before `save()`.
    """
    import wandb_workspaces.reports.v2 as wr

    judged = wr.Runset(name="runs", filters=_of(group, JUDGING), groupby=["jobType"])
    report = wr.Runset(name="report", filters=_of(group, 'Metric("JobType") == "report"'))
    return wr.Report(
        entity=place.entity or "",
        project=place.project,
        title=f"Study {group}"[:128],
        width="fluid",
        blocks=[
            wr.MarkdownBlock(told),
            wr.H2("The runs"),
            wr.PanelGrid(runsets=[judged], panels=_panels(metric)),
            wr.H2("The comparison"),
            wr.PanelGrid(
                runsets=[report],
                panels=[
                    wr.WeavePanelSummaryTable(table_name="comparison", layout=wr.Layout(w=24, h=10))
                ],
            ),
        ],
    )


def workspace(group: str, metric: str, place: Any) -> Any:
    """W&B's workspace: the same panels over the same runs, where other runs can be looked at beside
    them.
    """
    import wandb_workspaces.workspaces as ws

    return ws.Workspace(
        entity=place.entity or "",
        project=place.project,
        name=re.sub(r"[^\w .,-]", "_", f"Study {group}"),
        sections=[ws.Section("The arms", panels=_panels(metric), is_open=True)],
        runset_settings=ws.RunsetSettings(
            filters=_of(group, JUDGING), groupby=[ws.Metric("JobType")]
        ),
    )


def _of(group: str, which: str) -> str:
    """W&B's filter for runs of a group; marks in its name are escaped, as `=` and quotes would be
    read as the filter's own.
    """
    name = re.sub(r"[^\w.-]", lambda mark: f"\\U{ord(mark[0]):08x}", group)
    return f'Metric("Group") == "{name}" and {which}'


def _panels(metric: str) -> list[Any]:
    """A curve or bar for each arm: the mean over its seeds, with their standard deviation."""
    import wandb_workspaces.reports.v2 as wr

    arms: Mapping[str, Any] = {
        "groupby": "JobType",
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
        "max_runs_to_show": 100,
    }
    return [
        *(
            wr.LinePlot(
                title=name, x=wandb_logger.STEP, y=[name], title_y=metrics.of(name).unit, **arms
            )
            for name in dict.fromkeys(["val/loss", metric])
        ),
        wr.BarPlot(
            title=f"{metric} at the end, without runs that diverged",
            metrics=[wr.SummaryMetric(metric)],
            **arms,
        ),
        wr.LinePlot(
            title="training speed",
            x=wandb_logger.STEP,
            y=["train/tokens_per_second"],
            title_y=metrics.of("train/tokens_per_second").unit,
            **arms,
        ),
    ]
