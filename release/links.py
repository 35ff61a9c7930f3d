"""The addresses of the repository and of its maintainers, in their one place, and links to files of the repository.

`setup.py` imports this file where nothing but the standard library is installed.
"""

import re
from pathlib import PurePosixPath

REPOSITORY = "https://repository.invalid/qkv"
"""Where the repository is. `.invalid` is the placeholder of RFC 2606, with which `make release` refuses to go on."""

CONTACT = "maintainers@repository.invalid"
"""Who answers mail about the package, its security and the conduct of its people; a placeholder too."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def is_placeholder(address: str) -> bool:
    """Return whether an address leads nowhere.

    Example:
        >>> is_placeholder("https://repository.invalid/qkv"), is_placeholder("you@qkv.org")
        (True, False)
    """
    host = re.sub(r"^(https?://|[^/@]*@)", "", address).partition("/")[0]
    return not host or host.rpartition(".")[2] in ("invalid", "example", "test", "localhost")


def urls(version: str, repository: str = REPOSITORY) -> dict[str, str]:
    """Return the links beside a package on an index, by their titles; none if the repository is a placeholder."""
    if is_placeholder(repository):
        return {}
    return {
        "Homepage": repository,
        "Documentation": file_address("docs/index.md", f"v{version}", repository),
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": file_address("CHANGELOG.md", f"v{version}", repository),
    }


def file_address(path: str, at: str, repository: str = REPOSITORY, *, raw: bool = False) -> str:
    """Return the address of a file of the repository.

    Args:
        path: its path from the top.
        at: a branch or a tag.
        repository: the repository's address.
        raw: the file itself, as a page shows a picture, in place of a page about it.

    Example:
        >>> file_address("docs/a.png", "v0.1.0", "https://github.com/you/qkv", raw=True)
        'https://github.com/you/qkv/raw/v0.1.0/docs/a.png'
    """
    return f"{repository}/{'raw' if raw else 'blob'}/{at}/{path}"


def absolute_links(text: str, at: str, repository: str = REPOSITORY) -> str:
    """Make links of a page at the top of the repository work elsewhere.

    Args:
        text: the page's Markdown.
        at: the branch or tag that links lead to.
        repository: the repository's address.

    Returns:
        The Markdown: links and pictures with a path lead to the repository, all others are as they were.

    Example:
        >>> absolute_links("[a](docs/a.md#b), ![c](c.png), [d](#d)", "v1.0.0", "https://qkv.org")
        '[a](https://qkv.org/blob/v1.0.0/docs/a.md#b), ![c](https://qkv.org/raw/v1.0.0/c.png), [d](#d)'
    """

    def absolute(link: re.Match[str]) -> str:
        picture, label, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link.group(0)
        path, _, anchor = target.partition("#")
        address = file_address(str(PurePosixPath(path)), at, repository, raw=bool(picture))
        return f"{picture}[{label}]({address}{f'#{anchor}' if anchor else ''})"

    return _LINK.sub(absolute, text)
