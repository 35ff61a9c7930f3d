"""The result table: every row is a command that anyone can run again."""
