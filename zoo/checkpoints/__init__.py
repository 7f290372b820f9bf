"""Reads checkpoints safely, and loads the models in them."""
