"""The entry of the command `qkv`. It imports nothing large, so that Ctrl-C is handled from the start."""

import io
import sys

from qkv.cli.environment import set_defaults
from qkv.cli.interruption import end_quietly
from qkv.cli.room import BAD_INPUT, tell_if_out_of_memory


def main() -> None:
    """Run the command line; commands import PyTorch only when they run, after its environment is set."""
    set_defaults()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # help contains characters that not every locale has
    end_quietly()
    try:
        from qkv.cli.app import app

        app()
    except BaseException as error:  # before or after a command, which tells of its own; panics of Rust are no Exception
        if not tell_if_out_of_memory(error):
            raise
        sys.exit(BAD_INPUT)
