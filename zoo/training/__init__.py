"""One run, from a configuration to a folder that tells the whole story."""
