"""Collects the tables of all model classes of transformers that have a counterpart in the zoo."""

from zoo.hf.decoders import DECODERS
from zoo.hf.encoder_decoders import ENCODER_DECODERS
from zoo.hf.encoders import ENCODERS
from zoo.hf.family import Family

# By class; a class that is two of the zoo's models has a word behind its name in the second.
FAMILIES: dict[str, Family] = {**DECODERS, **ENCODERS, **ENCODER_DECODERS}
