"""Families of published models: for each a table between its names and ours, read in both directions."""
