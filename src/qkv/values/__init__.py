"""Small frozen values: how parameters align with the leading shape, and how PyTorch sees the values."""
