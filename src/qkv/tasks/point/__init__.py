"""Pointing: from lines of tokens to a network whose answers are positions in them."""
