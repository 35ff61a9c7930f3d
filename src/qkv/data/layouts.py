"""What a line seems to be that does not have the layout it should have, for hints in messages."""

import re

_FASTTEXT = "__label__"
_MARKS = ("|||", ";", ",", "|")


def untabbed(line: str, columns: str) -> str | None:
    """Say what a line without tabs seems to be, and how to write it.

    Args:
        line: the line.
        columns: the columns that it should have, as in "label<TAB>text".

    Returns:
        A sentence; None if it looks like nothing in particular.

    Example:
        >>> untabbed("good,a fine film", "label<TAB>text")
        'The columns seem to be separated by ",": write label<TAB>text, with a tab and without quotation marks.'
    """
    start = line.lstrip()
    if start.startswith(("{", "[{")):
        return f"The file seems to be JSON: write {columns} on each line."
    if start.startswith(_FASTTEXT):
        return f"The file seems to be written for fastText: write {columns}, without {_FASTTEXT}."
    if "\\t" in line:
        return "The line has the two characters \\t: write a tab in their place, as printf does."
    for mark in _MARKS:
        if mark in line:
            seems = f'The columns seem to be separated by "{mark}"'
            return f"{seems}: write {columns}, with a tab and without quotation marks."
    if re.search(r"\S {2,}\S", line):
        return f"The columns seem to be separated by several spaces: write {columns}, with a tab."
    return None


def old_line_ends(line: str) -> str | None:
    """Say what to do with a line that has a carriage return in it; None if it has none.

    Example:
        >>> old_line_ends("one\\rtwo")
        "Its lines seem to end in carriage returns, as on old Macs: convert it with tr '\\\\r' '\\\\n'."
    """
    if "\r" not in line:
        return None
    return "Its lines seem to end in carriage returns, as on old Macs: convert it with tr '\\r' '\\n'."
