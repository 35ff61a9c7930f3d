"""The engine's speed against what PyTorch users have without it: rows by name, a table in the docs, a plot."""
