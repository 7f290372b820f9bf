"""The sweeper that runs a study: Hydra finds it here, and chooses it by hydra/sweeper=zoo_study."""
