"""From words to configurations: mistakes are met by name, and what is nearer to the person wins."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
import pytest

from tests.helpers.components import chosen
from zoo import config, models, registry
from zoo.conformance.tiny import example
from zoo.errors import ZooError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("norm=rsm", "norm=rsm: no such norm: did you mean 'rms'.*layer, rms"),
        ("nrom=rms", "unknown option 'nrom' in 'nrom=rms': did you mean 'norm'"),
        (
            "norm=rms norm.epss=1",
            r"norm has no option 'epss': did you mean 'eps'\? \(there are: eps, zero_centered\)",
        ),
        ("norm.epss=1", "norm has no option 'epss': did you mean 'eps'"),
        ("norm.eps=abc", "norm.eps: .*'abc'"),
        ("norm=rms norm.bias=true", "norm has no option 'bias'"),
        ("norm.eps=nan", "norm.eps=nan must be a finite number"),
        ("norm.eps=-1", "norm.eps must be at least 0, not -1.0"),
        ("norm=rms norm.eps=-1", "norm.eps must be at least 0, not -1.0"),
        ("arch.layers=0", "arch.layers must be at least 1"),
        ("attn.scale=nan", "attn.scale=nan must be a finite number"),
        ("pos=rope pos.base=inf", "pos.base=inf must be a finite number"),
        ("optim.weight_decay=nan", "optim.weight_decay=nan must be a finite number"),
        ("data.val_fraction=nan", "data.val_fraction=nan must be a finite number"),
        ("trainer.clip=inf", "trainer.clip=inf must be a finite number"),
        ("trainer.clip=nan", "trainer.clip=nan must be a finite number"),
        ("arch=null", "arch=null: no such arch"),
        ("loader=null", "loader=null: no such loader"),
        ("model=null", "model=null: no such model"),
        ("~seed", "a run needs a seed"),
        ("~arch.dim", "~arch.dim: an option cannot be taken away, only changed: write arch.dim="),
        ("+foo=3", "nothing reads 'foo'"),
        ("+trainer.x=3", "trainer has no option 'x'"),
        ("+logger.x=3", "logger=wandb has no option 'x'"),
        (
            "logger.mode=foo",
            r"logger.mode: Invalid value 'foo', expected one of \[auto, online, offline,"
            r" disabled\]",
        ),
        ("hydra.run.dir=", "hydra.run.dir= names no folder"),
        ("hydra.sweep.dir=", "hydra.sweep.dir= names no folder"),
        ("norm@x=rms", "Could not override 'norm@x'"),
        ("norm=layer,rms", "norm=layer,rms lists several values; add -m to run each"),
        ("plan_only=true", "is about a study: python -m ablations.run plan_only=true"),
        ("norm.eps@x=1", "norm.eps"),
        ("arch.dmi=3", "arch has no option 'dmi': did you mean 'dim'"),
        ("arch.dim=3.5", "arch.dim: .*3.5"),
        (
            f"arch.dropout={'1' * 400} arch.dim=32",
            "arch.dropout: int too large to convert to float",
        ),
        ("arch.dim=null", "arch.dim"),
        ("attn.backend=spda", "attn.backend: .*spda"),
        ("attn.kv_heads=2", "attn has no option 'kv_heads'"),
        ("trainer.max_step=5", "trainer has no option 'max_step': did you mean 'max_steps'"),
        ("trainer.precision=fp16", "trainer.precision"),
        ("trainer=gpuu", "did you mean 'gpu'"),
        ("model=gpt3x", "did you mean 'gpt"),
        ("loader.batch_sise=3", "loader has no option 'batch_sise': did you mean 'batch_size'"),
        ("data=text", "data.path is needed: give data.path=..."),
        ("sed=3", "unknown option 'sed'.*did you mean 'seed'"),
        ("seed=-1", "seed must be a whole number from 0"),
        ("seed=abc", "seed"),
        ("seed=true", "seed must be a whole number"),
        ("logger.tags=a", r"logger.tags must be a list, as in logger.tags=\[a,b\], not 'a'"),
        ("resume=maybe", "resume must be auto or never"),
        ("norm", "norm"),
        ("norm=", "norm"),
        ("norm=[rms", "rms"),
        (
            "data.path=Bücher",
            r"""cannot read 'data.path=Bücher': quote the value, as in data.path='"Bücher"'$""",
        ),
        ("+norm._target_=os.system", "_target_"),
        ("+norm.epss=1", "epss"),
        ("norm.eps=${oc.env:HOME}", "norm.eps"),
        (
            "trainer.log_every=${oc.env:HOME}",
            r"trainer.log_every: Value .* could not be converted to Integer",
        ),
        ("~norm", "norm"),
    ],
)
def test_a_wrong_word_is_met_with_one_plain_sentence(words: str, said: str) -> None:
    with pytest.raises(ZooError, match=said) as refused:
        config.compose(words.split())
    assert "\n" not in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_an_empty_word_is_met_too_and_no_choice_is_listed_twice() -> None:
    with pytest.raises(ZooError, match=r"cannot read '': write group=choice"):
        config.compose([""])
    with pytest.raises(ZooError) as refused:
        config.compose(["nrom=rms"])
    assert str(refused.value).count("loader") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("attn=gqa attn.kv_heads=3", "4 heads cannot share 3 KV heads"),
        ("pos=rope arch.dim=20", "pos=rope turns pairs.*must be even, not 5"),
        ("arch.pattern=[{norm:{eps:nan}}]", "norm.eps=nan must be a finite number"),
        ("arch.pattern=[{norm:{eps:-1}}]", "norm.eps must be at least 0, not -1.0"),
        ("arch.pattern=[{norm:{_target_:os.system}}]", "norm=layer has no option '_target_'"),
        ("arch.pattern=[{norm:rsm}]", "unknown norm 'rsm'"),
        ("arch.pattern=[{nrom:rms}]", "arch.pattern names 'nrom'"),
        ("arch.pattern=[{attn:{window:many}}]", "attn.window: .*many"),
    ],
)
def test_what_has_no_meaning_is_refused_when_the_model_is_made(words: str, said: str) -> None:
    composed = config.compose(words.split())
    with pytest.raises(ZooError, match=said):
        models.build(composed, device="meta")


CHOSEN = [group for group in config.menu() if group in registry.groups()]


@pytest.mark.parametrize("row", range(max(len(registry.entries(group)) for group in CHOSEN)))
def test_every_choice_composes_with_its_defaults(row: int) -> None:
    """One of each group at a time, until every one has had its turn."""
    picked = {
        group: list(registry.entries(group))[row % len(registry.entries(group))] for group in CHOSEN
    }
    needed = [
        f"{group}.{option}={value}"
        for group, name in picked.items()
        for option, value in chosen(group, name).items()
        if option != "name"
    ]
    composed = config.compose([*(f"{group}={name}" for group, name in picked.items()), *needed])
    assert config.choices(composed) == {
        group: picked[group] for group in picked if group != "logger"
    }
    for group, name in picked.items():
        assert composed[group].keys() == {
            option.name for option in fields(registry.entry(group, name).options)
        }
    assert "${" not in repr(composed)


def test_a_configuration_is_plain_values() -> None:
    composed = config.compose(["arch.length=64", "attn.backend=eager"])
    assert composed["attn"]["backend"] == "eager"
    assert type(composed["trainer"]["precision"]) is str
    assert composed["loader"]["length"] == 64
    assert composed["arch"]["vocab"] == registry.build("tokenizer", composed["tokenizer"]).vocab
    assert config.compose(["arch.vocab=50"])["arch"]["vocab"] == 50


def test_composing_twice_gives_equal_configurations_that_share_nothing() -> None:
    first, second = config.compose(["norm=rms"]), config.compose(["norm=rms"])
    assert first == second
    first["norm"]["eps"] = 1.0
    first["arch"]["pattern"].append({})
    assert config.compose(["norm=rms"]) == second


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A model and an experiment of somebody's own, that say different things of the same
    options.
    """
    for group, name, head, body in (
        (
            "model",
            "own",
            "override /norm: rms",
            "arch: {dim: 64, layers: 2, heads: 2}\nnorm: {eps: 0.1}\n",
        ),
        ("experiment", "own", "override /ffn: swiglu", "arch: {layers: 3, heads: 8}\nseed: 5\n"),
    ):
        (tmp_path / group).mkdir()
        text = f"# @package _global_\ndefaults:\n  - {head}\n{body}"
        (tmp_path / group / f"{name}.yaml").write_text(text, encoding="utf-8")
    return [f"hydra.searchpath=[file://{tmp_path}]", "model=own", "experiment=own"]


def test_the_command_line_wins_over_experiment_over_model_over_defaults(files: list[str]) -> None:
    composed = config.compose([*files, "arch.heads=4"])
    default = config.compose([])
    assert composed["arch"]["length"] == default["arch"]["length"]
    assert composed["arch"]["dim"] == 64 != default["arch"]["dim"]
    assert (composed["arch"]["layers"], composed["arch"]["heads"], composed["seed"]) == (3, 4, 5)
    assert (composed["norm"]["name"], composed["norm"]["eps"], composed["ffn"]["name"]) == (
        "rms",
        0.1,
        "swiglu",
    )
    chosen = config.compose([*files, "norm=layer", "ffn=relu", "seed=6"])
    assert (chosen["norm"]["name"], chosen["ffn"]["name"], chosen["seed"]) == ("layer", "relu", 6)


def test_a_study_may_take_a_model(files: list[str]) -> None:
    without = config.compose([files[0], "model=own"])
    assert (without["arch"]["layers"], without["arch"]["heads"], without["seed"]) == (2, 2, 0)
    assert config.compose([*files[:2], "norm.eps=0.2"])["norm"]["eps"] == 0.2


def test_a_pattern_can_be_typed() -> None:
    words = ["arch.pattern=[{attn:{window:8}},{attn:{window:null},ffn:swiglu},{}]", "arch.layers=6"]
    composed = config.compose(words)
    assert composed["arch"]["pattern"] == [
        {"attn": {"window": 8}},
        {"attn": {"window": None}, "ffn": "swiglu"},
        {},
    ]
    blocks: Any = models.build(composed, device="meta").stack.blocks
    assert [block.attn.sublayer.window for block in blocks] == [8, None, None] * 2
    assert [hasattr(block.ffn.sublayer, "gate") for block in blocks] == [False, True, False] * 2


def test_a_nested_choice_can_be_typed() -> None:
    for words in (["attn.qk_norm=rms"], ["attn.qk_norm={name:rms,eps:0.5}"]):
        block: Any = models.build(config.compose(words), device="meta").stack.blocks[0]
        assert block.attn.sublayer.q_norm.eps == (0.5 if "eps" in words[0] else 1e-6)


def test_the_jobs_of_a_multirun_are_the_product() -> None:
    words = ["norm=layer,rms", "seed=0,1,2", "arch.dim=32"]
    typed = Namespace(overrides=words, multirun=True, config_dir=None)
    jobs = list(config.jobs(typed))
    assert [(job["norm"]["name"], job["seed"]) for _, job in jobs] == [
        (norm, seed) for norm in ("layer", "rms") for seed in range(3)
    ]
    assert {job["arch"]["dim"] for _, job in jobs} == {32}
    single = Namespace(overrides=["norm=rms"], multirun=False, config_dir=None)
    assert len(list(config.jobs(single))) == 1


def test_different_names_the_keys_that_differ() -> None:
    one = {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": [1], "only": 1}
    other = {"a": 1, "b": {"c": 4, "d": {"e": 5}}, "f": [1, 2]}
    assert (
        config.different(one, other)
        == config.different(other, one)
        == ["b.c", "b.d.e", "f", "only"]
    )
    assert config.different(one, one) == []
    told = config.different(config.compose(["norm=rms"]), config.compose(["arch.dim=64"]))
    assert told == ["arch.dim", "norm.bias", "norm.eps", "norm.name", "norm.zero_centered"]
    assert config.different({"a": {}}, {"a": None}) == ["a"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["changing=[optm]"], r"changing names 'optm', which no configuration has.*'optim'"),
        (["changing=[optim.ls]"], "changing names 'optim.ls'"),
        (["trainer.strategy=ddpp"], "trainer.strategy=ddpp is none of auto, ddp, fsdp"),
        (["trainer.strategy=ddp_spawn"], "trainer.strategy=ddp_spawn is none of"),
    ],
)
def test_what_no_run_knows_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(ZooError, match=told):
        config.compose(words)


def test_a_run_from_before_an_option_was_there_had_its_default() -> None:
    before, now = config.compose([]), config.compose(["loader.stream=true"])
    del before["loader"]["stream"], before["trainer"]["spike"]
    assert config.changed(config.compose([]), before) == []
    assert config.changed(now, before) == ["loader.stream"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["norm=rms", "norm.eps=1e-3"],
        ["model=llama_7b", "size=tiny", "ffn.hidden=32"],
        ["model=t5", "arch.vocab=50"],
        ["experiment=smoke", "++norm.eps=1"],
        ["attn=gqa", "attn.kv_heads=2", "loader.length=${arch.dim}"],
    ],
)
def test_options_applied_to_a_shared_structure_give_what_hydra_composes(words: list[str]) -> None:
    with config.composing() as compose:
        compose([word for word in words if "." not in word])  # from here on it is shared
        assert compose(words) == config.finished(hydra.compose("config", words), words)


def test_a_size_changes_nothing_that_the_command_line_gives() -> None:
    for words, path, value in (
        (
            ["model=gpt", "arch.pattern=[{attn:{window:8}},{}]"],
            ("arch", "pattern", 0, "attn", "window"),
            8,
        ),
        (
            ["model=mixtral_8x7b", "ffn.expert={name:swiglu,hidden:48}"],
            ("ffn", "expert", "hidden"),
            48,
        ),
        (["model=llama3_8b", "arch.layers=7"], ("arch", "layers"), 7),
    ):
        found = config.compose([*words, "size=tiny"])
        for key in path:
            found = found[key]
        assert found == value


@pytest.mark.parametrize(
    ("words", "path", "expected"),
    [
        (
            "model=t5 arch.cross={name:gqa,kv_heads:2}",
            ("arch", "cross"),
            {"name": "gqa", "scale": 1.0, "kv_heads": 2},
        ),
        (
            "model=mixtral_8x7b ffn.expert={name:gelu,bias:true}",
            ("ffn", "expert"),
            {"name": "gelu", "hidden": 14336, "bias": True},
        ),
        (
            "model=llama3_405b pos.scaling={name:linear,factor:2}",
            ("pos", "scaling"),
            {"name": "linear", "factor": 2},
        ),
        (
            "model=modernbert_base pos=learned",
            ("arch", "pattern", 0),
            {"attn": {"window": 65}, "pos": {}},
        ),
        ("model=gemma2_2b attn=lstm pos=none", ("arch", "pattern", 0), {"attn": {}}),
    ],
)
def test_what_a_file_says_of_a_part_goes_with_the_part(
    words: str, path: tuple[Any, ...], expected: Any
) -> None:
    """Options that the new part has not are left out with the old one; the others stay, as for
    any part.
    """
    found: Any = config.compose(words.split())
    for key in path:
        found = found[key]
    assert found == expected
    models.build(config.compose([*words.split(), "size=tiny"]), device="meta")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("cross=gqa", "write arch.cross=... instead of 'cross=gqa'"),
        ("scaling=yarn", "write pos.scaling=..."),
        ("arch.pattern=[{attn:null}]", "attn must be a name or its options"),
        ("arch.pattern=[{attn:5}]", "not 5"),
        ("pos=rope pos.scaling=true", "scaling must be a name or a mapping"),
        ("model=t5 arch.cross=null", "needs arch.cross"),
        ("model=modernbert_base pos=sinusoidal", "only one position"),
        ("ffn=moe ffn.shared=[]", "ffn must be a name"),
    ],
)
def test_a_part_within_a_part_is_refused_in_plain_words(words: str, told: str) -> None:
    with pytest.raises(ZooError, match=re.escape(told)):
        models.build(config.compose(words.split()), device="meta")


def inner_choices() -> dict[tuple[str, str], str]:
    """Each place where a component is chosen inside another, and what can be chosen there, with
    the word for the outer one.
    """
    found: dict[tuple[str, str], str] = {}
    for outer in config.choices(config.compose()):
        for name, entry in registry.entries(outer).items():
            for place in [option.name for option in fields(entry.options) if option.type is Any]:
                for inner in registry.entries(registry.group_within(place)):
                    found.setdefault((f"{outer}.{place}", inner), f"{outer}={name}")
    return found


def plain_values(group: str, name: str) -> Iterator[tuple[str, Any]]:
    """Each option of a component that is a number, a switch or a word, with a value that it can
    have.
    """
    for option in fields(registry.entry(group, name).options)[1:]:
        if option.type is not Any and option.type != list[str]:
            default = getattr(option.default, "name", option.default)
            yield option.name, example(option) if default in (None, "???") else default


def test_every_option_of_a_choice_inside_a_component_can_be_given() -> None:
    """As arch.cross=gqa arch.cross.kv_heads=1."""
    tried = inner_choices()
    places = {place for place, _ in tried}
    assert places >= {
        "arch.cross",
        "attn.qk_norm",
        "head.norm",
        "pos.scaling",
        "ffn.expert",
        "ffn.shared",
    }
    with config.composing() as compose:
        for (place, inner), outer in tried.items():
            group, option = place.split(".")
            values = dict(plain_values(registry.group_within(option), inner))
            words = [
                outer,
                f"{place}={inner}",
                *(f"{place}.{word}={value}" for word, value in values.items()),
            ]
            found = compose(words)[group][option]
            assert found == ({"name": inner} | values if values else inner), words
        spelled = config.spelled(
            ["arch=encoder_decoder", "arch.cross=gqa", "arch.cross.kv_heads=1", "model=t5"]
        )
        found = config.finished(hydra.compose("config", spelled), spelled)  # as in a job of Hydra's
        assert found["arch"]["cross"] == {"name": "gqa", "kv_heads": 1, "scale": 1.0}, (
            "with the options of the model's file"
        )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("model=t5 arch.cross.window=3", "cross=mha has no option 'window'"),
        ("model=t5 arch.cross.kv_heads=1", "cross=mha has no option 'kv_heads'"),
        ("attn.qk_norm=rsm", "unknown norm 'rsm': did you mean 'rms'"),
        ("attn.qk_norm={name:rms,epss:1}", "norm=rms has no option 'epss'"),
        ("attn.qk_norm={name:rms,eps:nan}", "norm.eps=nan must be a finite number"),
        ("attn.qk_norm={_target_:os.system}", "nothing is chosen there"),
        (
            "attn.qk_norm.eps=1e-3",
            "attn.qk_norm is given options, but nothing is chosen there: add attn.qk_norm=NAME",
        ),
        ("arch.cross.bias=true", "arch=decoder has no option 'cross'"),
    ],
)
def test_an_option_that_a_choice_inside_a_component_has_not_is_refused(
    words: str, told: str
) -> None:
    with pytest.raises(ZooError, match=told):
        config.compose(words.split())


@pytest.mark.usefixtures("own_registry")
def test_what_is_declared_anew_is_composed_anew() -> None:
    for eps in (1.0, 2.0):
        registry._entries["norm"].pop("mine", None)

        @registry.register("norm", "mine")
        def mine(dim: int, *, eps: float = eps) -> None:
            """A norm of these tests."""

        assert config.compose(["norm=mine"])["norm"]["eps"] == eps


def test_a_configuration_that_is_changed_changes_no_other() -> None:
    first = config.compose(["attn=gqa"])
    first["attn"]["kv_heads"] = "changed"
    first["trainer"].clear()
    second = config.compose(["attn=gqa", "arch.dim=64"])
    assert config.compose(["attn=gqa"]) != first
    assert second["attn"]["kv_heads"] != "changed"
    assert config.compose(["attn=gqa"])["arch"]["dim"] != 64
