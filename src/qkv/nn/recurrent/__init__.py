"""Recurrent units, and operations that a loop over time repeats with the same weights or keys."""
