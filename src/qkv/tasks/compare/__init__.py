"""`qkv compare`: one task trained with each combination of some settings, and their figures side by side."""
