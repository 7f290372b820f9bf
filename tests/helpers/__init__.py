"""Helpers that several test modules share: models, runs, studies and commands to test with."""
