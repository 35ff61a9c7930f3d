"""The names that settings of decoding choose from. It imports nothing, because every command reads it."""

from typing import Literal

Stop = Literal["proved", "filled"]
"""When a beam ends: once no unfinished hypothesis can still win, or once as many as the beam is wide have finished."""
Normalization = Literal["plain", "wu"]
"""How scores are divided by length: |Y|^α, or Wu's ((5 + |Y|) / 6)^α."""
Mean = Literal["probability", "log_probability"]
"""How the predictions of several models are averaged: arithmetically, or geometrically."""
