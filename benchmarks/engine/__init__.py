"""The engine's speed against what a PyTorch user has without it: rows by name, a table in the docs, a plot."""
