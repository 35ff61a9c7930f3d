"""Masked words, filled by a published encoder."""
