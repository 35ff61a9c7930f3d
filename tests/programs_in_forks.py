"""Programs of the tests that fork many times, run in a fork of this process, which has imported what they would import.

To start Python and import PyTorch takes each of them seconds.
"""

import os
import runpy
import sys
import traceback
import warnings
from subprocess import CompletedProcess
from tempfile import TemporaryFile

import torch


def run_program(module: str, *arguments: object) -> "CompletedProcess[str]":
    """Run a module as `python -W ignore -m` does, on one thread; return its exit code and what it wrote."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for number, file in enumerate((output, errors), start=1):
                    os.dup2(file.fileno(), number)
                sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
                sys.argv = [module, *map(str, arguments)]
                warnings.simplefilter("ignore")
                torch.set_num_threads(1)
                runpy.run_module(module, run_name="__main__")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:  # nothing may let the child go on with the other tests
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
        return CompletedProcess([module], code, *texts)
