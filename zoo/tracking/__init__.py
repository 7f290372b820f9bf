"""Records a run: its status, metrics and provenance, in its folder and in Weights & Biases."""
