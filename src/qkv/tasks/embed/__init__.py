"""Vectors of texts, from encoders."""
