"""Recurrent units, and what their loops prepare once."""
