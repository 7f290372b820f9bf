"""How the weights are moved: optimisers. Wiring: groups of parameters, as `parameter_groups` gives them."""

from zoo.optim.optimisers import Group, orthogonal, parameter_groups, states

__all__ = ["Group", "orthogonal", "parameter_groups", "states"]
