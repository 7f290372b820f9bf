"""Converts models to and from transformers: the same logits, or a refusal that names the
difference.

>>> model = zoo.hf.from_hf("path/or/name")  # or a transformers model
>>> hf_model = zoo.hf.to_hf(model)
"""

from zoo.hf.checkpoint import export
from zoo.hf.closest import counterpart
from zoo.hf.convert import from_hf, to_hf

__all__ = ["counterpart", "export", "from_hf", "to_hf"]
