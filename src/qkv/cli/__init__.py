"""The command line. Import commands from their modules."""
