"""Baselines: bits per byte and nats per token of simple models, by hand."""

import lzma
import math

import numpy as np
import pytest

from zoo.data.baselines import baseline_bits, unigram_nats


def test_baselines_of_a_constant_text():
    n = 100_000
    bits = baseline_bits([b"a" * n], b"a" * 50)
    assert bits["unigram"] == pytest.approx(-math.log2((n + 1) / (n + 256)))
    assert bits["bigram"] == pytest.approx(
        (bits["unigram"] + 49 * -math.log2(n / (n - 1 + 256))) / 50
    )
    assert bits["xz"] == 8 * len(lzma.compress(b"a" * 50, preset=9 | lzma.PRESET_EXTREME)) / 50


def test_two_equally_likely_letters_need_one_bit():
    text = np.random.default_rng(0).choice([97, 98], 200_000).astype(np.uint8).tobytes()
    bits = baseline_bits([text[:70_001], b"", text[70_001:150_000]], text[150_000:])
    assert bits["unigram"] == pytest.approx(1, abs=0.005)
    assert bits["bigram"] == pytest.approx(1, abs=0.008)
    assert bits["xz"] > 1


def test_alternating_text_costs_one_unigram_bit_and_no_bigram_bit():
    bits = baseline_bits([b"ab" * 50_000], b"ab" * 500)
    assert bits["unigram"] == pytest.approx(1, abs=0.005)
    assert bits["bigram"] < 0.01
    assert baseline_bits([], b"ab")["bigram"] == 8


@pytest.mark.parametrize("pieces", [[b"ab"], [b"a", b"b"], [b"a", b"", b"b"]])
def test_bigrams_across_pieces_are_counted(pieces):
    first, second = 2 / (2 + 256), 2 / (1 + 256)
    assert baseline_bits(pieces, b"ab")["bigram"] == pytest.approx(
        -(math.log2(first) + math.log2(second)) / 2
    )


def test_baselines_of_an_empty_text_are_nan():
    assert all(math.isnan(value) for value in baseline_bits([b"abc"], b"").values())
    assert math.isnan(unigram_nats(np.arange(3), np.arange(0), 3))


def test_unigram_nats_over_tokens():
    assert unigram_nats(np.arange(0), np.arange(5), 5) == pytest.approx(math.log(5))
    expected = -(math.log(4 / 9) + math.log(1 / 9)) / 2
    assert unigram_nats(
        np.array([0, 0, 0, 1], np.uint16), np.array([0, 4], np.uint16), 5
    ) == pytest.approx(expected)
