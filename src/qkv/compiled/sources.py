"""Which source files decide a kernel's machine code: its own file, and all files of qkv that it imports in turn.

The imports are read from the text of the files, so that nobody keeps a list and nothing is imported to find them.
"""

import ast
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, final

PACKAGE = Path(__file__).parents[1]
_DEFINITION = re.compile(rb"^(?:@|def |class |async def )", re.MULTILINE)
_WORD = re.compile(rb"\bimport\b")


class _File(NamedTuple):
    digest: str
    imports: tuple[Path, ...]


@final
class Sources:
    """Source files as this process first read them.

    A file is read once: code that a process has imported does not change when its file is edited later.

    Args:
        package: the folder of the package whose files are followed.
        read: returns the bytes of a file.

    Example:
        >>> [path.stem for path in Sources().files([PACKAGE / "compiled" / "register_math.py"])]
        ['register_math', 'registers']
    """

    def __init__(self, package: Path = PACKAGE, read: Callable[[Path], bytes] = Path.read_bytes) -> None:
        """Read nothing yet."""
        self.package = package
        self._read = read
        self._files: dict[Path, _File] = {}

    def files(self, paths: Iterable[Path]) -> list[Path]:
        """List some files and all files of the package that they import, directly or through others.

        Args:
            paths: of Python source files, in the package or outside.

        Returns:
            Each file once, in order.

        Raises:
            OSError: a file, or one that it imports, has no source that can be read.
            SyntaxError: a file is not Python.
        """
        files, pending = set[Path](), list(paths)
        while pending:
            path = pending.pop()
            if path not in files:
                files.add(path)
                pending += self._file(path).imports
        return sorted(files)

    def digest(self, paths: Iterable[Path]) -> str:
        """Return the sha256 of all that `files` lists, names included; it does not depend on where the package lies.

        Args:
            paths: of Python source files.

        Returns:
            64 hexadecimal digits.

        Raises:
            OSError: a file, or one that it imports, has no source that can be read.
            SyntaxError: a file is not Python.
        """
        lines = [f"{self._name(path)} {self._file(path).digest}\n" for path in self.files(paths)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def _name(self, path: Path) -> str:
        return path.relative_to(self.package).as_posix() if path.is_relative_to(self.package) else path.name

    def _file(self, path: Path) -> _File:
        if path not in self._files:
            source = self._read(path)
            imports = tuple(dict.fromkeys(self._imports(path, _parsed(source))))
            self._files[path] = _File(hashlib.sha256(source).hexdigest(), imports)
        return self._files[path]

    def _imports(self, path: Path, tree: ast.AST) -> Iterator[Path]:
        """Yield the files of the package that a file imports, inside functions too."""
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        if self._inside(alias.name):
                            yield self._module(alias.name)
                case ast.ImportFrom(module=module, names=names, level=level):
                    origin = self._absolute(path, module or "", level)
                    if self._inside(origin):
                        yield from self._from(origin, [alias.name for alias in names])

    def _inside(self, name: str) -> bool:
        return name.partition(".")[0] == self.package.name

    def _absolute(self, path: Path, module: str, level: int) -> str:
        if level == 0 or not path.is_relative_to(self.package):
            return module
        folder = path.parents[level - 1].relative_to(self.package.parent)
        return ".".join([*folder.parts, *filter(None, [module])])

    def _from(self, origin: str, names: list[str]) -> Iterator[Path]:
        """Yield what `from origin import names` reads: of a package, modules, and its own file for other names."""
        path = self._module(origin)
        folder = path.parent
        if path.name != "__init__.py":
            yield path
            return
        for name in names:
            yield next((candidate for candidate in _candidates(folder / name) if candidate.is_file()), path)

    def _module(self, name: str) -> Path:
        """Return the file of a module or package; of one without source, the file that is missing."""
        module, package = _candidates(self.package.parent.joinpath(*name.split(".")))
        return package if package.is_file() else module


def _parsed(source: bytes) -> ast.Module:
    """Parse the part of a file that can hold imports: a kernel's file takes milliseconds, its first lines a tenth."""
    definition = _DEFINITION.search(source)
    if definition and not _WORD.search(source, definition.start()):
        try:
            return ast.parse(source[: definition.start()])
        except SyntaxError:  # the line that looks like a definition stands in a string
            pass
    return ast.parse(source)


def _candidates(path: Path) -> tuple[Path, Path]:
    """Return where the source of a module may be: a file, or a folder's `__init__`."""
    return path.with_name(f"{path.name}.py"), path / "__init__.py"
