"""The version, in the one place that packaging and `qkv --version` read."""

VERSION = "0.1.0"
