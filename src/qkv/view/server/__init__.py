"""The viewer's server, for local browsers only. Import from its modules."""
