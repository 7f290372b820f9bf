"""Text from a source to batches: readers, tokenizers, the token cache, packing."""
