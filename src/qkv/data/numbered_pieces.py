"""SentencePiece models whose pieces a table numbers, as `transformers` reads them: those of Marian and of M2M-100."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from qkv.data.sentencepieces import SentencePieces
from qkv.data.vocabulary import parse
from qkv.errors import DataError

SOURCE, TARGET, NUMBERS = "source.spm", "target.spm", "vocab.json"
_TARGET_NUMBERS, _ADDED, _SPECIAL, _CONFIG = (
    "target_vocab.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
BOTH = "sentencepiece.bpe.model"
REQUIRED = ((SOURCE, TARGET, NUMBERS), (BOTH, NUMBERS))
"""The files that Marian needs, and those that M2M-100 needs."""
FILES = (SOURCE, TARGET, BOTH, NUMBERS, _TARGET_NUMBERS, _ADDED, _SPECIAL, _CONFIG)
"""The files that it is made from."""
_AGAIN = "Copy the folder again from its source."
_USUAL = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_USUAL_OF_M2M = {**_USUAL, "bos_token": "<s>", "sep_token": "</s>"}
_LANGUAGE = "en"
"""The source language of M2M-100, if the folder names none."""
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SPACES = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What `clean_up_tokenization_spaces` writes without spaces."""


class Token(NamedTuple):
    """An id, and the characters from `start` to `end` that it stands for; none for a token that was added."""

    number: int
    start: int
    end: int


class _Added(NamedTuple):
    """A token that is found in a text before it is split, and the white space beside it that it takes."""

    number: int
    left: bool = False
    right: bool = False


@final
class NumberedPieces:
    """The tokenizer of one side of a model: of Marian's for its language, of M2M-100's for all languages.

    Args:
        files: the contents of `FILES`, by name.
        folder: where they are, for messages.
        target: whether it is the side that is written.

    Attributes:
        numbers: the number of each piece.
        special: the ids that `decode` leaves out, with their texts.
        unknown, end: two of them.

    Raises:
        DataError: a file is not what it should be.
    """

    def __init__(self, files: Mapping[str, bytes], folder: str, *, target: bool) -> None:
        """Read the files."""
        tables = {name: _table(files, name, folder) for name in FILES if name.endswith(".json")}
        config, separate = tables[_CONFIG], tables[_CONFIG].get("separate_vocabs", False) is True
        if separate and _TARGET_NUMBERS not in files:
            where, expected = str(Path(folder, _CONFIG)), f"{_TARGET_NUMBERS} beside separate_vocabs"
            raise DataError(where, expected, "none", _AGAIN)
        for name in (NUMBERS, _TARGET_NUMBERS, _ADDED):
            _expect_numbers(tables[name], str(Path(folder, name)))
        self._is_m2m = not {SOURCE, TARGET} <= files.keys()
        name = BOTH if self._is_m2m else TARGET if target else SOURCE
        self._model = SentencePieces(files[name], str(Path(folder, name)))
        usual = _USUAL_OF_M2M if self._is_m2m else _USUAL
        named = _special_tokens(usual, config, tables[_SPECIAL], str(Path(folder, _CONFIG)))
        self.numbers: dict[str, int] = tables[_TARGET_NUMBERS if target and separate else NUMBERS]
        if named["unk_token"] not in self.numbers:
            where = str(Path(folder, _TARGET_NUMBERS if target and separate else NUMBERS))
            raise DataError(where, f"the unknown token {named['unk_token']}", "none", _AGAIN)
        self._added = _added_tokens(tables, list(named.values()), str(Path(folder, _CONFIG)))
        self.special = {self._added[text].number: text for text in named.values()}
        self.unknown, self.end = self.numbers[named["unk_token"]], self._added[named["eos_token"]].number
        self._names = {number: piece for piece, number in self.numbers.items()}
        self._names |= {added.number: text for text, added in self._added.items()}
        self._begin = [self._language(config, str(Path(folder, _CONFIG)))] if self._is_m2m else []
        self._cleans = config.get("clean_up_tokenization_spaces") is True
        longest_first = sorted(self._added, key=len, reverse=True)
        self._find_added = re.compile("|".join(map(re.escape, longest_first)))

    def encode(self, text: str, *, special: bool = False) -> list[Token]:
        """Split a text; special tokens stay whole, and so does the language code of a text for Marian (">>fra<<").

        Args:
            text: any text.
            special: whether the end token is added, and for M2M-100 the code of the source's language.
        """
        tokens = list[Token]()
        for part, start, added in self._parts(text):
            if added:
                tokens.append(Token(self._added[part].number, start, start + len(part)))
                continue
            code = None if self._is_m2m else re.match(">>.*?<<", part, re.DOTALL)
            pieces = [] if code is None else [(code[0], 0, code.end())]
            begin = 0 if code is None else code.end()
            pieces += [(piece, begin + left, begin + right) for piece, left, right in self._model.encode(part[begin:])]
            tokens += (Token(self._number(piece), start + left, start + right) for piece, left, right in pieces)
        return [*self._begin, *tokens, Token(self.end, 0, 0)] if special else tokens

    def decode(self, ids: list[int]) -> str:
        """Join the pieces of ids; special tokens, and ids without a piece, are left out."""
        pieces = [self._names[number] for number in ids if number in self._names and number not in self.special]
        text = self._model.decode(pieces).replace("▁", " ").strip()
        for spaced in _SPACES if self._cleans else ():
            text = text.replace(spaced, spaced.strip())
        return text

    def name(self, number: int) -> str | None:
        """Return the piece of an id; None for an id without one."""
        return self._names.get(number)

    def names(self) -> Mapping[int, str]:
        """Return the piece of each id."""
        return self._names

    def _language(self, config: Mapping[str, Any], where: str) -> Token:
        """Return the code of the source's language."""
        code = f"__{config.get('src_lang') or _LANGUAGE}__"
        if code not in self._added:
            hint = f"{_SPECIAL} lists the codes, as additional_special_tokens."
            raise DataError(f"{where}: src_lang", "a language whose code the folder lists", ascii(code)[:80], hint)
        return Token(self._added[code].number, 0, 0)

    def _number(self, piece: str) -> int:
        added = self._added.get(piece)
        return self.numbers.get(piece, self.unknown) if added is None else added.number

    def _parts(self, text: str) -> Iterator[tuple[str, int, bool]]:
        """Yield each part of a text, its place, and whether it is an added token."""
        parts, at = list[list[Any]](), 0
        for match in self._find_added.finditer(text):
            parts += [[text[at : match.start()], at, False], [match[0], match.start(), True]]
            at = match.end()
        parts.append([text[at:], at, False])
        for index, (part, _, added) in enumerate(parts):
            if added and self._added[part].left:
                parts[index - 1][0] = parts[index - 1][0].rstrip()
            if added and self._added[part].right:
                after = parts[index + 1]
                after[1] += len(after[0]) - len(after[0].lstrip())
                after[0] = after[0].lstrip()
        return ((part, start, added) for part, start, added in parts if part)


def _special_tokens(
    usual: Mapping[str, str], config: Mapping[str, Any], table: Mapping[str, Any], where: str
) -> dict[str, str]:
    """Return the special tokens by name: those of the class, which tokenizer_config.json and, where that has no table
    of added tokens, special_tokens_map.json replace.
    """
    settings = {**config, **({} if "added_tokens_decoder" in config else table)}
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    if isinstance(extra, list):
        extra = {f"extra {index}": token for index, token in enumerate(extra)}
    if not isinstance(extra, dict):
        raise DataError(where, "a list of tokens as extra_special_tokens", f"{extra!r:.40}", _AGAIN)
    named = {**usual, **{name: item for name, item in settings.items() if name.endswith("_token")}, **extra}
    contents = {name: item.get("content") if isinstance(item, dict) else item for name, item in named.items()}
    texts: dict[str, str] = {name: text for name, text in contents.items() if isinstance(text, str) and text}
    for name in ("eos_token", "unk_token"):
        if name not in texts:
            raise DataError(where, f"a token as {name}", f"{named[name]!r:.40}", _AGAIN)
    return dict(sorted(texts.items(), key=lambda item: _NAMED.index(item[0]) if item[0] in _NAMED else len(_NAMED)))


def _added_tokens(tables: Mapping[str, dict[str, Any]], special: list[str], where: str) -> dict[str, _Added]:
    """Return the tokens that are found before a text is split; special ones that have no number get the next ones."""
    config, numbers = tables[_CONFIG], tables[NUMBERS]
    if "added_tokens_decoder" in config:
        added = _listed_tokens(config["added_tokens_decoder"], where)
    else:
        added = {text: _Added(number) for text, number in tables[_ADDED].items()}
    for text in special:
        if text not in added:
            number = numbers[text] if text in numbers else len(numbers.keys() | added.keys())
            added[text] = _Added(number)
    return {text: token for text, token in added.items() if text}


def _listed_tokens(listed: object, where: str) -> dict[str, _Added]:
    """Return the tokens that tokenizer_config.json lists by their numbers."""
    added = dict[str, _Added]()
    items: Iterable[tuple[str, Any]] = listed.items() if isinstance(listed, dict) else [("", listed)]
    for number, token in items:
        text = token.get("content") if isinstance(token, dict) else None
        if not isinstance(text, str) or re.fullmatch("[0-9]{1,9}", number) is None:
            raise DataError(where, "added_tokens_decoder to be tokens by their numbers", f"{token!r:.80}", _AGAIN)
        if token.get("single_word"):
            hint = "Remove the token if the model does not need it."
            raise DataError(where, "tokens that are found within words too", f"single_word of {text!r:.40}", hint)
        added[text] = _Added(int(number), token.get("lstrip") is True, token.get("rstrip") is True)
    return added


def _table(files: Mapping[str, bytes], name: str, folder: str) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no file."""
    if name not in files:
        return {}
    where = str(Path(folder, name))
    try:
        document = parse(files[name].decode(), where)
    except UnicodeDecodeError as error:
        raise DataError(where, "UTF-8", f"byte {error.start:,} that is not", _AGAIN) from None
    if not isinstance(document, dict):
        raise DataError(where, "a JSON object", f"a {type(document).__name__}", _AGAIN)
    return document


def _expect_numbers(table: Mapping[str, Any], where: str) -> None:
    for piece, number in table.items():
        if type(number) is not int or not 0 <= number < 1 << 31:
            raise DataError(where, "a number from 0 for each piece", f"{ascii(piece)[:40]}: {number!r:.40}", _AGAIN)
