"""The configurations of models: each is a table of settings (`qkv.settings`), and imports no PyTorch."""
