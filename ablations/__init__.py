"""The harness: many runs, one conclusion."""
