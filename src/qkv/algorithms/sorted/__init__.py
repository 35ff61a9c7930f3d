"""Scores of one number per query and key, by sorting."""
