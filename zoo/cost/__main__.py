"""The command line `python -m zoo.cost model=gpt2`: what a model costs, without building it."""

from __future__ import annotations

import argparse
import sys

from zoo.cost import cluster, cluster_plan
from zoo.cost.activations import figures, training_memory
from zoo.cost.counting import made, of
from zoo.cost.tables import assumption_lines, plan_table, table
from zoo.errors import ZooError, cli_errors, command, did_you_mean
from zoo.utils.progress import doing


@cli_errors()
def main() -> None:
    from zoo import config

    parser = argparse.ArgumentParser(
        prog="python -m zoo.cost",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "What a model costs, without building it; after the word plan, what training it on"
            " many GPUs would take."
        ),
        epilog="\n".join(
            [
                "words of a plan, beside those of zoo.train (plan model=llama3_70b gpus=512"
                " tensor=8 tokens=15T):",
                *cluster_plan.help_lines(),
            ]
        ),
    )
    parser.add_argument(
        "words", nargs="*", metavar="WORD=VALUE", help="as for zoo.train: model=gpt2 norm=rms"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    given = parser.parse_intermixed_args()
    planned, words = given.words[:1] == ["plan"], [word for word in given.words if word != "plan"]
    asked = [word for word in words if planned and word.partition("=")[0] in cluster_plan.WORDS]
    for word in words:
        if word.startswith("hydra.") and not word.startswith("hydra.searchpath"):
            raise ZooError(f"{word} is about a run, and a cost has none: leave it out")
        if not planned and word.partition("=")[0] in cluster_plan.WORDS:
            raise ZooError(f"{word} is a word of a plan: {command('zoo.cost', 'plan', *words)}")
        if planned and (instead := cluster_plan.INSTEAD.get(word.partition("=")[0])):
            raise ZooError(f"a plan does not read {word}: give {instead}")
        known = [*config.menu(), "seed", "resume", *cluster_plan.WORDS]
        if planned and (key := word.partition("=")[0]).isidentifier() and key not in known:
            raise ZooError(f"unknown option {key!r}{did_you_mean(key, known)}")
    trained = [word for word in words if word not in asked]
    chosen = config.compose([*(["trainer.precision=bf16-mixed"] if planned else []), *trained])
    if planned:
        plan = cluster_plan.parse(
            asked, chosen["trainer"]["precision"], chosen["trainer"]["gradient_checkpointing"]
        )
        if chosen["arch"]["heads"] % plan.tensor:
            raise ZooError(
                f"tensor={plan.tensor} GPUs cannot share arch.heads={chosen['arch']['heads']}:"
                f" give a divisor of it"
            )
        with doing("counting", stream=sys.stderr):
            counted = figures(chosen)
        cost = cluster.of(counted, plan)
    else:
        with doing("counting", stream=sys.stderr):
            model = made(chosen)
            cost = of(chosen, model) | {"training_memory_bytes": training_memory(chosen, model)}
    if given.json:
        import json

        print(json.dumps(cost, indent=2))
    else:
        from zoo.utils import tables

        where = tables.console()
        tables.show((plan_table if planned else table)(cost, " ".join(words) or "model=gpt"), where)
        for line in assumption_lines(cost) if planned else ():
            where.print(line)
    if planned:
        cluster.refuse_if_too_large(counted, plan)


if __name__ == "__main__":
    main()
