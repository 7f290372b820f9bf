"""From a study's file to its arms: nothing is guessed, and what cannot be compared is refused by
name.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ablations import design
from ablations import study as studies
from zoo.config import CONF, overrides
from zoo.errors import ZooError

NORMS = ["norm=layer", "norm=rms"]
FACTORS = {
    "norm": NORMS,
    "ffn": ["ffn=relu", "ffn=gelu", "ffn=swiglu"],
    "pos": ["pos=learned", "pos=rope"],
}
TWO = {"norm": NORMS, "depth": ["arch.layers=1", {"name": "deep", "arch.layers": 2}]}


def parsed(**content: Any) -> studies.Study:
    factors = {} if content.get("design") == "arms" else {"factors": FACTORS}
    return studies.parse({"name": "own", "match": "none"} | factors | content)


def arms(**content: Any) -> list[design.Arm]:
    return design.arms(parsed(**content))


@pytest.mark.parametrize(
    ("told", "number"),
    [
        ({"design": "one_at_a_time"}, 1 + 1 + 2 + 1),
        ({"design": "leave_one_out"}, 1 + 3),
        ({"design": "ladder"}, 1 + 3),
        ({"design": "factorial"}, 2 * 3 * 2),
        ({"design": "factorial", "constraints": [["norm=rms", "ffn=relu"]]}, 2 * 3 * 2 - 2),
        ({"design": "factorial", "pairs": [["norm", "pos"]]}, 2 * 3),
        ({"design": "one_at_a_time", "pairs": [["norm", "pos"]]}, 1 + 1 + 2),
        ({"design": "arms", "arms": {"a": "norm=layer", "b": "norm=rms", "c": []}}, 3),
        ({"design": "fractional", "factors": TWO}, 4),
    ],
)
def test_a_design_has_as_many_arms_as_it_says(told: dict[str, Any], number: int) -> None:
    found = arms(**told)
    assert len(found) == number
    assert len({tuple(arm.words) for arm in found}) == number
    assert len({arm.name for arm in found}) == number


def test_a_ladder_adds_and_leave_one_out_takes_away() -> None:
    ladder, without = arms(design="ladder"), arms(design="leave_one_out")
    assert [len(arm.differs) for arm in ladder] == [0, 1, 2, 3]
    assert ladder[-1].words == without[0].words
    assert [arm.differs for arm in without[1:]] == [["norm=layer"], ["ffn=relu"], ["pos=learned"]]
    assert (without[1].name, without[1].folder) == ("without norm", "without_norm")


def test_later_words_take_the_place_of_earlier_ones() -> None:
    assert arms(baseline=["norm=rms", "arch.dim=32"], common="arch.dim=64")[0].words == [
        "arch.dim=64",
        "norm=layer",
        "ffn=relu",
        "pos=learned",
    ]


def test_a_choice_may_have_a_name_and_values_of_any_kind() -> None:
    both = {
        "ffn": "moe",
        "ffn.expert": {"name": "swiglu", "hidden": 8},
        "arch.first": [],
        "trainer.clip": None,
    }
    assert studies.choices([{"name": "both", **both}], "") == {
        "both": [
            "ffn=moe",
            "ffn.expert={name:swiglu,hidden:8}",
            "arch.first=[]",
            "trainer.clip=null",
        ]
    }
    assert studies.choices(["", "schedule.warmup=5 norm=rms"], "") == {
        "default": [],
        "schedule.warmup=5,norm=rms": ["schedule.warmup=5", "norm=rms"],
    }


def read(text: str, place: Path) -> studies.Study:
    (place / "own.yaml").write_text(text, encoding="utf-8")
    return studies.load(str(place / "own.yaml"))


NAMES = [
    "off",
    "on",
    "yes",
    "no",
    "null",
    "1e-3",
    "010",
    "1:30",
    "2024-01-01",
    "größe",
    "größé",
    "A b",
    "a_b",
    "it's (1)",
    "é",
    "ü",
    "..",
    "~",
    "a/b",
    "x" * 200,
    "x" * 201,
]


def test_names_stay_as_they_are_written_and_their_folders_are_distinct(tmp_path: Path) -> None:
    lines = [f"  {name}: arch.dim={2 * number + 2}" for number, name in enumerate(NAMES)]
    found = design.arms(
        read("\n".join(["design: arms", "arms:", *lines, "expected: {on: worse}"]), tmp_path)
    )
    assert [arm.name for arm in found] == NAMES
    folders = [arm.folder for arm in found]
    assert len({folder.casefold() for folder in folders}) == len(NAMES)
    assert all(
        re.fullmatch(r"[\w.+=,-]{1,80}", folder, re.ASCII) and folder.strip(".")
        for folder in folders
    )
    assert folders[0] == "off", "a plain name is its folder's"
    chosen = read(
        "factors: {norm: [{name: off, norm: layer}, {name: on, norm: rms}]}\nexpected: {norm=on:"
        " worse}",
        tmp_path,
    )
    assert list(chosen.factors["norm"]) == ["off", "on"]


def test_values_of_a_study_mean_what_they_mean_on_a_command_line(tmp_path: Path) -> None:
    told = (
        "common: {data.path: '/x/a,b.txt', a.a: off, a.b: 010, a.c: 1:30, a.d: 2024-01-01, a.e:"
        " 1e-3, a.f: 1_000,"
        " a.g: True, a.h: ~, a.i: \"it's (1)\", a.j: '', a.k: -.5}\nfactors: {norm: [norm=layer,"
        " norm=rms]}"
    )
    values = [overrides.parse(word).value() for word in read(told, tmp_path).common]
    assert values == [
        "/x/a,b.txt",
        "off",
        "010",
        "1:30",
        "2024-01-01",
        0.001,
        1000,
        True,
        None,
        "it's (1)",
        "",
        -0.5,
    ]


@pytest.mark.parametrize(
    "told", ["arms: {a: norm=rms, a: norm=layer}", "seeds: 1\nseeds: 2", "arms: {[a]: norm=rms}"]
)
def test_a_key_that_is_there_twice_or_is_no_word_is_refused(told: str, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"is repeated|must be a word"):
        read(told, tmp_path)


@pytest.mark.parametrize("factors", range(1, 13))
def test_a_fraction_confounds_no_main_effect_with_another_or_with_an_interaction_of_two(
    factors: int,
) -> None:
    """By aliasing itself, not by the generators: the contrasts of the runs are orthogonal."""
    runs = design.fraction(factors)
    assert len(set(runs)) == len(runs)
    assert runs[0] == (0,) * factors, "the baseline is among them"
    signs = [[1 - 2 * run[factor] for run in runs] for factor in range(factors)]
    pairs = [
        [a * b for a, b in zip(*pair, strict=True)] for pair in itertools.combinations(signs, 2)
    ]
    for main in signs:
        assert sum(main) == 0
        assert all(
            sum(a * b for a, b in zip(main, other, strict=True)) == 0
            for other in signs
            if other is not main
        )
        assert all(sum(a * b for a, b in zip(main, pair, strict=True)) == 0 for pair in pairs)
    assert (design.resolution(factors) or 99) >= (5 if factors == 5 else 4)
    assert len(runs) == {5: 16, 6: 16, 7: 16, 8: 16}.get(factors, 32 if factors > 8 else 2**factors)


def test_the_hash_is_of_all_that_a_reader_relies_on_and_the_key_of_what_decides() -> None:
    told = parsed()
    assert told.hash == parsed(about="x", common="logger=none").hash
    prose = [parsed(question="y"), parsed(sd=1.0), parsed(expected={"ffn=gelu": "better"})]
    assert {other.key for other in prose} == {told.key}, "the same runs, in the same folder"
    assert len({told.hash, *(other.hash for other in prose)}) == 4
    assert told.hash == studies.hashed(json.loads(json.dumps(asdict(told))) | {"new": None}), (
        "as it stands in study.json"
    )
    others = [
        parsed(**changed)
        for changed in (
            {"seeds": 6},
            {"margin": 0.1},
            {"metric": "val/bits_per_byte"},
            {"match": "params"},
            {"common": "arch.dim=32"},
            {"design": "factorial"},
            {"factors": TWO},
            {"tune": {"grid": {"optim.lr": [1e-3]}}},
        )
    ]
    assert (
        len({told.hash, *(other.hash for other in others)})
        == len({told.key, *(other.key for other in others)})
        == 9
    )
    assert studies.parse(
        {"name": "own", "seeds": 3, "factors": {"norm": ["norm=layer", "norm=rms"]}}
    ).key.startswith(KEY)


KEY = "dcfab96b6da866cb"  # pinned: a study that ran last year is still known


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"factor": {}}, "a study has no 'factor': did you mean 'factors'?"),
        ({"design": "factorail"}, "design=factorail: no such design: did you mean 'factorial'?"),
        ({"match": "parms"}, "did you mean 'params'"),
        ({"factors": {"norm": "norm=layer"}}, "factors.norm must be a list of choices"),
        ({"factors": {"norm": ["layer"]}}, "'layer' is not an override such as norm=rms"),
        ({"factors": {"norm": ["norm=rms", "norm=rms"]}}, "'norm=rms' twice"),
        ({"factors": {}}, "study own is empty"),
        ({"factors": {"norm": ["norm=layer"]}}, "leaves 1 arm, "),
        ({"design": "arms"}, "is empty"),
        ({"seeds": []}, "seeds must be how many"),
        ({"seeds": [1, 1]}, "a seed twice"),
        ({"common": "seed=1"}, "belongs in the study's seeds: [...]"),
        ({"margin": -1}, "margin must be a number above 0"),
        ({"pairs": [["norm", "pso"]]}, "no factor 'pso': did you mean 'pos'?"),
        ({"pairs": [["norm", "ffn"]]}, "norm has 2, ffn has 3 choices"),
        ({"pairs": [["norm", "pos"], ["pos", "norm"]]}, "a factor may be in one pair only"),
        (
            {"arms": {"a": "norm=layer"}},
            "does not use arms: leave them out, or set design: arms",
        ),
        ({"design": "arms", "factors": TWO}, "does not use factors"),
        ({"margin": float("inf")}, "margin must be a number above 0"),
        ({"constraints": [["norm=rsm"]]}, "no arm has norm=rsm: did you mean 'norm=rms'?"),
        ({"tune": {"grids": {}}}, "tune has no 'grids': did you mean 'grid'?"),
        ({"tune": {"grid": {}}}, "tune.grid must name options"),
        ({"expected": {"ffn=gelu": "good"}}, "no such verdict 'good'"),
        (
            {"expected": {"ffn=gleu": "better"}},
            "expected.ffn=gleu: no such arm: did you mean 'ffn=gelu'?",
        ),
        ({"constraints": [["norm=layer"]]}, "the constraints rule out the baseline"),
        ({"design": "fractional"}, "needs factors of two choices each"),
        (
            {"design": "fractional", "factors": TWO, "constraints": [["norm=rms"]]},
            "constraints take runs out of a fraction",
        ),
        (
            {
                "factors": {
                    "a": ["norm=layer", {"name": "n=1", "norm": "rms"}],
                    "b": ["ffn=relu", {"name": "n=1", "ffn": "gelu"}],
                }
            },
            "two arms of the name 'n=1'",
        ),
        (
            {"design": "arms", "arms": {"a\nb": "norm=rms", "c": "norm=layer"}},
            "'a\\nb' has a line break",
        ),
        ({"tune": {"grid": {"optim.lr": [1e-3, 0.001]}}}, "tune.grid.optim.lr has 0.001 twice"),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_a_sentence(told: dict[str, Any], said: str) -> None:
    with pytest.raises(ZooError) as refused:
        arms(**told)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            {"factors": {"norm": ["norm=layer", "norm=rsm"]}},
            "arm norm=rsm: norm=rsm: no such norm: did you mean 'rms'?",
        ),
        (
            {"factors": {"norm": ["norm=layer", "norm.epps=1"]}},
            "arm norm.epps=1: norm has no option 'epps': did you mean 'eps'?",
        ),
        ({"factors": {"norm": ["norm=layer", "arch.heads=3"]}}, "arm arch.heads=3: "),
        (
            {"factors": {"norm": ["norm=layer", "norm=rms"], "eps": ["", "norm.eps=1e-5"]}},
            "arms baseline and norm.eps=1e-5 are the same run",
        ),
        (
            {"factors": {"tokenizer": ["tokenizer=byte", "tokenizer=bpe"]}},
            "differ in their tokenizer",
        ),
        (
            {"factors": {"data": ["data.val_fraction=0.02", "data.val_fraction=0.1"]}},
            "differ in their data",
        ),
    ],
)
def test_an_arm_that_cannot_run_is_refused_by_its_name(told: dict[str, Any], said: str) -> None:
    told_study = parsed(**told)
    with pytest.raises(ZooError) as refused:
        design.checked(told_study, design.arms(told_study))
    assert said in str(refused.value)


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "study").glob("*.yaml")))
def test_every_study_that_is_shipped_has_arms_of_matched_budgets(name: str) -> None:
    from ablations import plan

    made = plan.make(studies.load(name))
    assert made.study.about
    assert made.study.question
    assert len(made.arms) >= 2
    assert len(made.jobs()) == len(made.arms) * len(made.study.seeds)


def test_an_unknown_study_is_told_from_those_there_are() -> None:
    with pytest.raises(ZooError, match="no study 'smok': did you mean 'smoke'"):
        studies.load("smok")
