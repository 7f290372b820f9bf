"""Models: a body that gives hidden states, and a head that turns them into logits."""

from zoo.models.families import LAYERED, Decoder, build, fill

__all__ = ["LAYERED", "Decoder", "build", "fill"]
