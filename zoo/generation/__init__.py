"""Generates text with a trained model, and fills its masks and gaps."""

from zoo.generation.decoding import at_places, generate

__all__ = ["at_places", "generate"]
