"""Softmax over dot products."""
