"""Modules that several components share: attention, the base of a mixer, CPU kernels,
activations.
"""
