"""Saves checkpoints, reads them safely, and loads the models in them."""
