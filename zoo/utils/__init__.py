"""Small tools that know nothing of models: files, locks, tables, progress, seeds."""
