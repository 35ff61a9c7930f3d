"""Kernel regression: from a table of numbers to an estimate with its interval."""
