"""`qkv prepare`: turn text into tokens on disk, for trainings on more than fits in memory."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.failure import guarded
from qkv.cli.flags import flagged, option_of
from qkv.cli.train import flags_of, typed_settings
from qkv.errors import on_command_line
from qkv.settings import defaults_of, hints_of, options_of
from qkv.tasks.prepare.settings import PREPARE, PrepareOptions
from qkv.tasks.settings import spelling_settings

_FILES = "files"
_Files = Annotated[list[Path] | None, typer.Argument(metavar="FILES...", help="Text, or JSON lines (.jsonl); .gz too.")]
_OPTIONS = {
    name: Annotated[hint, option_of(PrepareOptions, name, options_of(PrepareOptions)[name].help, "Run")]
    for name, hint in hints_of(PrepareOptions).items()
}


@flagged({_FILES: _Files, **_OPTIONS, **flags_of(PREPARE, options=False)}, defaults_of(PrepareOptions))
def prepare(**flags: Any) -> None:
    """Run the command with its flags."""
    from qkv.tasks.notes import as_json
    from qkv.tasks.prepare.preparing import Preparation
    from qkv.tasks.streams import write_json

    files = flags.pop(_FILES) or []
    options = {name: flags.pop(name) for name in _OPTIONS}
    typed = typed_settings(PREPARE, flags)
    with spelling_settings(PREPARE, typed, on_command_line):
        preparation = Preparation.of(files, PREPARE.in_tables(typed), options["tokenizer_from"])
        prepared = preparation.prepare(options["out"], options["processes"])
    if as_json():
        write_json([prepared._asdict()])


prepare.__doc__ = PREPARE.help
command = guarded(prepare)
