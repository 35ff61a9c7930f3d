"""The viewer's server, for browsers of this machine alone; import from its modules."""
