"""What several components share: attention, the base of a mixer, activations."""
