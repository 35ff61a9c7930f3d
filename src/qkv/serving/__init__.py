"""`qkv serve`: trained models behind HTTP. Import from its modules."""
