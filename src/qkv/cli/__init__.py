"""The command line; import it from its modules."""
