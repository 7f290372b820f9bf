"""Tokenizers: exact round trips, training, and refused states."""

import json
import random

import numpy as np
import pytest

from tests.helpers.token_caches import STRANGE
from zoo.data import tokenizers as module
from zoo.data.tokenizers import BPE, EOT, Byte, loads
from zoo.errors import ZooError
from zoo.registry import build

TRAINING = ["the cat sat on the mat\n" * 20, STRANGE * 3, "def f(x):\n    return x + 1\n" * 20]


def odd_texts() -> list[str]:
    chance = random.Random(0)
    points = [*range(0xD800), *range(0xE000, 0x110000)]
    return [
        "",
        " ",
        "\n",
        "\x00",
        STRANGE,
        EOT,
        *("".join(map(chr, chance.choices(points, k=200))) for _ in range(20)),
    ]


@pytest.fixture(params=["byte", "bpe"])
def tokenizer(request):
    if request.param == "byte":
        return Byte()
    bpe = BPE(vocab=400)
    bpe.train(TRAINING)
    return bpe


def test_no_text_is_lost(tokenizer):
    texts = odd_texts()
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert tokenizer.decode_bytes(ids) == text.encode()
        assert tokenizer.decode(ids) == text
        assert ids.tolist() == tokenizer.encode(text).tolist()
        assert tokenizer.byte_lengths()[ids].sum() == len(text.encode())


def test_no_text_becomes_end_of_text_and_no_id_leaves_the_vocabulary(tokenizer):
    ids = np.concatenate(tokenizer.encode_batch([*odd_texts(), f"a{EOT}b{EOT}"]))
    assert tokenizer.eot not in ids
    assert 0 <= ids.min() <= ids.max() < tokenizer.vocab
    assert tokenizer.byte_lengths().shape == (tokenizer.vocab,)
    assert tokenizer.byte_lengths()[tokenizer.eot] == 0
    assert tokenizer.decode([tokenizer.eot, *tokenizer.encode("x"), tokenizer.eot]) == "x"


def test_cut_character_decodes_to_its_bytes_and_a_replacement(tokenizer):
    ids = (
        Byte().encode("é")[:1] if isinstance(tokenizer, Byte) else [tokenizer.pieces.index(b"\xc3")]
    )
    assert tokenizer.decode(ids) == "\ufffd"
    assert tokenizer.decode_bytes(ids) == b"\xc3"


def test_tokenizer_round_trips_through_json(tokenizer):
    again = loads(tokenizer.dumps())
    assert again.dumps() == tokenizer.dumps()
    assert again.vocab == tokenizer.vocab
    assert [ids.tolist() for ids in again.encode_batch(TRAINING)] == [
        ids.tolist() for ids in tokenizer.encode_batch(TRAINING)
    ]


@pytest.mark.parametrize("ids", [[-100], [10**6], [0, -1]])
def test_ids_outside_the_vocabulary_are_refused(tokenizer, ids):
    with pytest.raises(ZooError, match="vocabulary ends at"):
        tokenizer.decode(ids)


def test_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(ZooError, match=r"character 1 .* surrogate"):
        tokenizer.encode("a\ud800")


def test_training_bpe_is_deterministic_and_compresses():
    first, second = BPE(vocab=400), BPE(vocab=400)
    first.train(TRAINING)
    second.train(iter(TRAINING))
    assert first.dumps() == second.dumps()
    assert len(first.encode(TRAINING[0])) < len(TRAINING[0]) / 3


def test_small_text_learns_fewer_merges_than_vocab():
    bpe = BPE(vocab=5000)
    bpe.train(["ab" * 10])
    assert bpe.vocab == len(bpe.pieces) == len(bpe.byte_lengths()) == 5000
    assert bpe.decode([4999]) == ""
    for vocab in (256, -1, 1 << 40):
        with pytest.raises(ZooError, match=r"tokenizer\.vocab "):
            build("tokenizer", {"name": "bpe", "vocab": vocab})


def test_untrained_bpe_refuses_to_encode():
    with pytest.raises(ZooError, match="not been trained"):
        BPE().encode("x")
    assert not loads(BPE(vocab=300).dumps()).trained


def test_cutting_a_long_text_keeps_its_ids(monkeypatch):
    bpe = BPE(vocab=400)
    bpe.train(TRAINING)
    text = "".join(TRAINING) + "\n\n  indented\n\nword\n" * 9
    whole = bpe.encode(text).tolist()
    parts = module.parts
    monkeypatch.setattr(module, "parts", lambda text: parts(text, 10))
    assert len(list(module.parts(text))) > 20
    assert "".join(module.parts(text)) == text
    assert bpe.encode(text).tolist() == whole


HOSTILE = [
    "",
    "[]",
    "{}",
    "null",
    "[" * 100_000,
    '{"name": 5, "state": null}',
    '{"name": "bpp", "state": null}',
    '{"name": "bpe", "vocab": 1e99, "state": null}',
    '{"name": "bpe", "vocab": "${oc.env:HOME}", "state": null}',
    '{"name": "bpe", "vocab": 300, "state": []}',
    '{"name": "byte", "extra": 1, "state": null}',
    '{"name": "byte", "state": 3}',
    '{"name": "bpe", "vocab": 300, "state": {"model": {"vocab": {}, "merges": []}}}',
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_json_is_refused(text):
    with pytest.raises(ZooError):
        loads(text)


@pytest.mark.parametrize(
    "harm",
    [
        lambda model: model["vocab"].update(Z=2),
        lambda model: model["vocab"].update({"北": len(model["vocab"])}),
        lambda model: model["vocab"].update(A=True),
        lambda model: model["vocab"].update(A=[]),
        lambda model: model["vocab"].pop("A"),
        lambda model: model["merges"].append(["q", "z"]),
        lambda model: model["merges"].append([1, 2]),
        lambda model: model["merges"].append(["a"]),
    ],
)
def test_damaged_bpe_is_refused(harm):
    bpe = BPE(vocab=400)
    bpe.train(TRAINING)
    saved = json.loads(bpe.dumps())
    harm(saved["state"]["model"])
    with pytest.raises(ZooError, match="damaged"):
        loads(json.dumps(saved))
