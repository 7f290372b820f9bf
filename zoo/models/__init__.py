"""Whole models: a body that gives hidden states, and a head that turns those it is given into logits."""

from zoo.models.families import LAYERED, Decoder, build, fill

__all__ = ["LAYERED", "Decoder", "build", "fill"]
