"""Turns text from a source into batches: readers, tokenizers, the token cache, packing."""
