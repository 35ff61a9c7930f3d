"""Forks of this process, which has imported what a new one would import for seconds."""

import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable
from subprocess import CompletedProcess
from tempfile import TemporaryFile

import torch


def in_fork(work: Callable[[], object]) -> "CompletedProcess[str]":
    """Do something in a fork, on one thread and without warnings; return its exit code and what it wrote."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for number, file in enumerate((output, errors), start=1):
                    os.dup2(file.fileno(), number)
                sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
                warnings.simplefilter("ignore")
                torch.set_num_threads(1)
                work()
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
        return CompletedProcess([], code, *texts)


def run_program(module: str, *arguments: object) -> "CompletedProcess[str]":
    """Run a module in a fork as `python -W ignore -m` does."""

    def run() -> None:
        sys.argv = [module, *map(str, arguments)]
        runpy.run_module(module, run_name="__main__")

    return in_fork(run)
