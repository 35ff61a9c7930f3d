"""The ways to compute attention, a folder for each family; import them from their modules."""
