"""The entry of the command `qkv`. It imports nothing large, so that Ctrl-C is handled from the start."""

import io
import os
import sys
from collections.abc import MutableMapping

from qkv.cli.early_exit import BAD_INPUT, end_quietly, report_out_of_memory
from qkv.errors import QkvError
from qkv.system import forget_stdout, is_closed_pipe, open_standard_streams

SPINS = "2000"
"""How often a waiting thread of GNU's OpenMP polls for work before it sleeps: some 40 µs.

The default is 300,000. If another process is busy, a thread that spins so long occupies the core that the thread it
waits for needs. On an idle machine 2,000 is about as fast (docs/understanding/planner.md).
"""
PRODUCTS = "64"
"""How many compiled matrix products oneDNN keeps, and how many PyTorch's own table of them keeps.

A training update uses about 30, and compiling one takes 0.25 ms. By default each keeps 1,024, of all batch shapes so
far: 0.5 MiB for each shape, which fragment the heap, so that few later tensors fit between them
(docs/understanding/memory.md).
"""
_ENVIRONMENT = {
    "GOMP_SPINCOUNT": (SPINS, ("OMP_WAIT_POLICY",)),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": (PRODUCTS, ("DNNL_PRIMITIVE_CACHE_CAPACITY",)),
    "LRU_CACHE_CAPACITY": (PRODUCTS, ()),
}


def main() -> None:
    """Run the command line; commands import PyTorch only when they run, after its environment is set."""
    set_defaults()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # help contains characters that not every locale has
    open_standard_streams()
    end_quietly()
    try:
        sys.exit(_run())
    except OSError as error:
        if error.filename is not None or error.errno is None:  # about a file, or not of the system
            raise
        forget_stdout()
        sys.exit(0 if is_closed_pipe(error) else _report_output_error(error))
    except BaseException as error:  # before or after a command, which reports its own; panics of Rust are no Exception
        if not report_out_of_memory(error):
            raise
        sys.exit(BAD_INPUT)


def set_defaults(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what libraries below PyTorch read from the environment when they start, unless the user did, by any name.

    Args:
        environment: where to set them; of this process by default. Libraries that are already loaded do not see it.

    Example:
        >>> chosen = {"OMP_WAIT_POLICY": "active"}
        >>> set_defaults(chosen)
        >>> sorted(chosen)
        ['LRU_CACHE_CAPACITY', 'OMP_WAIT_POLICY', 'ONEDNN_PRIMITIVE_CACHE_CAPACITY']
    """
    for name, (value, synonyms) in _ENVIRONMENT.items():
        if not any(synonym in environment for synonym in (name, *synonyms)):
            environment[name] = value


def _run() -> int | str | None:
    """Run the command line, write the rest of its output, and return its exit code."""
    code: int | str | None = 0
    try:
        from qkv.cli.app import app

        app()
    except SystemExit as end:
        # Only Click and Rich exit with 1, if they notice that the reader of a pipe has closed it, as `head` does.
        code = 0 if end.code == 1 else end.code
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()
    return code


def _report_output_error(error: OSError) -> int:
    hint = "Free some space, or write to another file."
    message = str(QkvError("standard output", "enough space for the output", f"{error.strerror}", hint))
    print(f"qkv: {message}", file=sys.stderr)  # noqa: T201
    return BAD_INPUT
