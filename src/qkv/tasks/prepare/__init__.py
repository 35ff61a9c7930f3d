"""Preparing corpora: from text to tokens on disk."""
