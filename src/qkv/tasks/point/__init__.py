"""Pointing: from lines of tokens to a network whose answers are places in them."""
