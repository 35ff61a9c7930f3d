"""Checkpoints for other libraries, and from them."""
