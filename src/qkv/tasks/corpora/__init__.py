"""Prepared corpora: tokens on disk, from which trainings read."""
