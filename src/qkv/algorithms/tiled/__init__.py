"""Any score under any normalizer, by tiles, in PyTorch alone."""
