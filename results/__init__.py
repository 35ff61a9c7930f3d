"""The result table: anyone can rerun every row with one command."""
