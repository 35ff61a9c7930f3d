"""Small frozen values: how parameters align with the leading shape, and their registration with PyTorch."""
