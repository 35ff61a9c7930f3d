"""Build qkv: what pyproject.toml says, and a step that compiles the kernels.

A wheel holds kernels for every processor of this kind of machine, a checkout (`pip install -e .`) those for this one.
The environment variable QKV_TARGETS names others, or `none`.
"""

import os
import platform
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).parent.absolute()
SOURCE = ROOT / "src"
sys.path.insert(0, str(ROOT))  # a build in isolation does not have the project's folder there

from release.links import CONTACT, absolute_links, is_placeholder, urls  # noqa: E402

VERSION = str(runpy.run_path(str(SOURCE / "qkv" / "_version.py"))["VERSION"])
BUILDS = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
"""Whether there are kernels for this kind of machine; elsewhere PyTorch's operators do their work."""


class BuildKernels(Command):
    """Compile the kernels into libraries, which become a part of the package."""

    description = "compile the kernels"
    user_options: ClassVar[list[tuple[str, str, str]]] = []

    build_lib: str | None

    def initialize_options(self) -> None:
        """Declare the options that setuptools sets."""
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Take the folder of the wheel's files from the step that copies them."""
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Run the builder in a process of its own."""
        chosen = os.environ.get("QKV_TARGETS", "" if self.editable_mode else "all").split()
        if not BUILDS or chosen == ["none"]:
            return
        folder = (
            (SOURCE if self.editable_mode else Path(str(self.build_lib)).absolute()) / "qkv" / "compiled" / "libraries"
        )
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
        if not self.editable_mode:  # an earlier wheel may have left other libraries
            shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "qkv.compiled.build", *chosen, "--into", str(folder)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)

    def get_source_files(self) -> list[str]:
        """Return nothing: the sources are modules of the package."""
        return []

    def get_outputs(self) -> list[str]:
        """Return nothing: the wheel takes the folder as it is."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """Return nothing: a checkout's libraries are built where they are used."""
        return {}


class Build(build):
    """The usual steps, then the kernels."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_kernels", None)]


class Wheel(bdist_wheel):
    """A wheel for every Python 3, as its libraries use the stable interface, and for every Linux with PyTorch."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return Python, ABI and platform."""
        return ("py3", "none", f"manylinux_2_17_{platform.machine()}") if BUILDS else super().get_tag()


class Binary(Distribution):
    """A distribution for one kind of machine, if kernels are built for it."""

    def has_ext_modules(self) -> bool:
        """Return whether it is."""
        return BUILDS


setup(
    long_description=absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), f"v{VERSION}"),
    long_description_content_type="text/markdown",
    author="The qkv authors",
    author_email=None if is_placeholder(CONTACT) else CONTACT,
    project_urls=urls(VERSION),
    cmdclass={"build": Build, "build_kernels": BuildKernels, "bdist_wheel": Wheel},
    distclass=Binary,
    setup_requires=["ziglang"] if BUILDS and shutil.which("ld") is None else [],
)
