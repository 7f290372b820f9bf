"""Damaged, incomplete or ambiguous folders: one sentence of advice, and no random weights."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo import hf
from zoo.errors import ZooError

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2, in one file, and beside it in shards."""
    folder = tmp_path_factory.mktemp("saved")
    sizes = {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": 50,
        "n_positions": 16,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    model.save_pretrained(folder / "one")
    model.save_pretrained(folder / "shards", max_shard_size="5KB")
    return folder


def with_config(**changes: Any) -> Damage:
    """config.json with other words; None takes one away."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        words = json.loads(file.read_text()) | changes
        file.write_text(
            json.dumps({word: value for word, value in words.items() if value is not None})
        )

    return change


def written(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def pickled(folder: Path) -> None:
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


CASES: dict[str, tuple[str, Damage, str]] = {
    "no architectures, two that fit": (
        "one",
        with_config(architectures=None, model_type="bert"),
        r'"architectures": \["BertForMaskedLM"\] or "architectures": \["BertModel"\]',
    ),
    "no architectures, none that fits": (
        "one",
        with_config(architectures=None, model_type="bloom"),
        "model_type=bloom",
    ),
    "a class that the zoo has not": (
        "one",
        with_config(architectures=["BloomForCausalLM"]),
        "BloomForCausalLM has no counterpart",
    ),
    "a class close to one": (
        "one",
        with_config(architectures=["GPT2Model"]),
        "did you mean 'GPT2LMHeadModel'",
    ),
    "something that is no class": (
        "one",
        with_config(architectures=["pipeline"]),
        "pipeline has no counterpart",
    ),
    "architectures that is a number": (
        "one",
        with_config(architectures=3),
        "architectures must be a list of class names, not 3",
    ),
    "architectures of numbers": (
        "one",
        with_config(architectures=[3]),
        "architectures must be a list of class names",
    ),
    "no model type": ("one", with_config(model_type=None), "does not say its model_type"),
    "an unknown model type": ("one", with_config(model_type="foo"), "model type `foo`"),
    "a wrong type in it": ("one", with_config(n_embd="abc"), "n_embd"),
    "heads that do not divide": ("one", with_config(n_head=3), "divisible"),
    "other shapes": ("one", with_config(n_embd=32), r"is \(\d+.* and config.json means"),
    "a layer too many": ("one", with_config(n_layer=3), r"lacks transformer\.h\.2\."),
    "a layer too few": ("one", with_config(n_layer=1), r"has transformer\.h\.1\..*does not count"),
    "not JSON": (
        "one",
        written("config.json", b"{not json"),
        "config.json is damaged: it is not JSON",
    ),
    "a list": ("one", written("config.json", b"[1]"), "not a JSON object"),
    "bytes": ("one", written("config.json", b"\xff\xfe\x00"), "config.json is damaged"),
    "no config": ("one", lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "empty": ("one", lambda folder: [file.unlink() for file in folder.iterdir()], "is empty"),
    "no weights": (
        "one",
        lambda folder: (folder / WEIGHTS).unlink(),
        "has no weights: there is no model.safetensors",
    ),
    "half of the weights": (
        "one",
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:3000]),
        "damaged or cut off",
    ),
    "none of the weights": ("one", written(WEIGHTS, b""), "damaged or cut off"),
    "a page instead": ("one", written(WEIGHTS, b"<html>404</html>" * 9), "damaged or cut off"),
    "a pointer instead": (
        "one",
        written(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid a\n"),
        "git lfs pull",
    ),
    "a missing shard": (
        "shards",
        lambda folder: next(folder.glob("model-00002*")).unlink(),
        "names model-00002.*not there",
    ),
    "a damaged shard": (
        "shards",
        lambda folder: next(folder.glob("model-00002*")).write_bytes(b"x"),
        "model-00002.*damaged",
    ),
    "a damaged index": ("shards", written(INDEX, b"{nope"), "index.json is damaged"),
    "an empty index": ("shards", written(INDEX, b"{}"), "index.json is damaged"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_folder_is_refused_in_one_sentence(
    case: str, whole: Path, tmp_path: Path
) -> None:
    source, damage, message = CASES[case]
    folder = Path(shutil.copytree(whole / source, tmp_path / "model"))
    damage(folder)
    with pytest.raises(ZooError, match=message) as refused:
        hf.from_hf(folder)
    assert str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("architectures", [None, [], "GPT2LMHeadModel"])
def test_architectures_are_optional_for_a_model_type_of_one_class(
    architectures: Any, whole: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(whole / "one", tmp_path / "model"))
    with_config(architectures=architectures)(folder)
    expected = hf.from_hf(whole / "one").state_dict()
    assert all(
        torch.equal(tensor, expected[name])
        for name, tensor in hf.from_hf(folder).state_dict().items()
    )


def test_pickled_weights_are_refused_with_a_working_conversion(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole / "one", tmp_path / "model"))
    pickled(folder)
    with pytest.raises(
        ZooError, match=r"as pytorch_model\.bin alone, and only safetensors are read"
    ) as refused:
        hf.from_hf(folder)
    way = re.search(
        r"transformers\.(\w+)\.from_pretrained\('(.*)'\)\.save_pretrained\(NEW_FOLDER\)",
        str(refused.value),
    )
    assert way is not None
    getattr(transformers, way[1]).from_pretrained(way[2]).save_pretrained(tmp_path / "new")
    expected = hf.from_hf(whole / "one").state_dict()
    assert all(
        torch.equal(tensor, expected[name])
        for name, tensor in hf.from_hf(tmp_path / "new").state_dict().items()
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/nowhere/at/all", "there is no folder /nowhere/at/all"),
        ("some org/a model", "there is no folder"),
        ("gpt2", "gpt2 is no folder here.*HF_HUB_OFFLINE"),
        ("some-org/some-model", "is no folder here.*HF_HUB_OFFLINE"),
        ("", "takes a model of transformers, a folder or a name"),
        (None, "not None"),
        ({}, "not {}"),
    ],
)
def test_missing_folder_is_refused_by_name(
    source: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ZooError, match=message):
        hf.from_hf(source)


def test_file_instead_of_folder_is_refused(whole: Path) -> None:
    with pytest.raises(ZooError, match="is a file: give the folder"):
        hf.from_hf(whole / "one" / WEIGHTS)
