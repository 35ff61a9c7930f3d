"""Which source files decide a kernel's machine code: its own file, and all files of qkv that it imports in turn.

The imports are read from the text of the files, so that nobody keeps a list and nothing is imported to find them. Not
followed are `SKIPPED`: files that kernels import and that decide no machine code.
"""

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, final

PACKAGE = Path(__file__).parents[1]
SKIPPED = ("errors.py", "compiled/library.py")


class _File(NamedTuple):
    digest: str
    meaning: str
    imports: tuple[Path, ...]


@final
class Sources:
    """Source files as this process first read them.

    A file is read once: code that a process has imported does not change when its file is edited later.

    Args:
        package: the folder of the package whose files are followed.
        read: returns the bytes of a file.
        skipped: names of files of the package that are not followed.

    Example:
        >>> [path.stem for path in Sources().files([PACKAGE / "compiled" / "register_math.py"])]
        ['codegen', 'register_math', 'registers', 'target']
    """

    def __init__(
        self,
        package: Path = PACKAGE,
        read: Callable[[Path], bytes] = Path.read_bytes,
        skipped: Iterable[str] = SKIPPED,
    ) -> None:
        """Read nothing yet."""
        self.package = package
        self._read = read
        self._skipped = {package / name for name in skipped}
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
            if path not in files and path not in self._skipped:
                files.add(path)
                pending += self._file(path).imports
        return sorted(files)

    def digest(self, paths: Iterable[Path]) -> str:
        """Return a digest of all that `files` lists, names included: of what they mean, wherever the package lies.

        Args:
            paths: of Python source files.

        Returns:
            64 hexadecimal digits.

        Raises:
            OSError: a file, or one that it imports, has no source that can be read.
            SyntaxError: a file is not Python.
        """
        lines = [f"{self._name(path)} {self._file(path).meaning}\n" for path in self.files(paths)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def digests(self, paths: Iterable[Path]) -> dict[str, tuple[str, str]]:
        """Return the sha256 and the `meaning` of each file of the package that `files` lists, by its name there."""
        files = [path for path in self.files(paths) if path.is_relative_to(self.package)]
        return {self._name(path): (self._file(path).digest, self._file(path).meaning) for path in files}

    def _name(self, path: Path) -> str:
        return path.relative_to(self.package).as_posix() if path.is_relative_to(self.package) else path.name

    def _file(self, path: Path) -> _File:
        if path not in self._files:
            source = self._read(path)
            imports = tuple(dict.fromkeys(self._imports(path, ast.parse(source))))
            self._files[path] = _File(hashlib.sha256(source).hexdigest(), meaning(source), imports)
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


def meaning(source: bytes) -> str:
    """Return a digest of what a file tells Python: without comments, docstrings, blank lines and line breaks.

    Args:
        source: the text of the file.

    Raises:
        SyntaxError: it is not Python.

    Example:
        >>> meaning(b"x = 1  # one") == meaning(b"x = (1)") != meaning(b"x = 2")
        True
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Module(body=body) | ast.ClassDef(body=body) | ast.FunctionDef(body=body):
                body[:] = [each for each in body if not _is_text(each)]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a string that nobody uses: a docstring."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def _candidates(path: Path) -> tuple[Path, Path]:
    """Return where the source of a module may be: a file, or a folder's `__init__`."""
    return path.with_name(f"{path.name}.py"), path / "__init__.py"
