"""Splitting text into tokens and joining tokens to text, for each kind of tokenizer.

`bpe` works on bytes, each represented by one printable character (Radford et al. 2019, "Language models are
unsupervised multitask learners"), so that nothing is unknown and every text round-trips exactly. Words include the
space before them; each digit and each punctuation mark is separate.

`word` keeps letters and digits together and makes each punctuation mark its own token. A mark that touches its neighbor
carries a joiner on that side (Klein et al. 2017, "OpenNMT"), so that "(t-shirt)" is restored without spaces while the
words themselves stay plain.

`none` takes the tokens that spaces separate as they are: phones, glosses, text that is tokenized already. A joiner
marks one that spells a special token.

`qkv.data.words` says what separates words. A no-break space does not: for `none` it is part of a token, for `word` a
mark.
"""

from collections.abc import Iterable, Iterator, Sequence
from unicodedata import category

from tokenizers import Regex, pre_tokenizers

from qkv.data.words import SEPARATORS, split_words
from qkv.errors import DataError

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
"""The first four pieces of every vocabulary; no text ever encodes to the first three."""
JOINER = "￭"
JOINER_IN_TEXT = "■"
"""Replacement for a joiner that occurs in the text itself."""

# The bounded repetition keeps the work linear: byte pair encoding of one word is superlinear in its length.
_RUN, _NEAR = 64, 256
_WORD_CHUNK = 1 << 14
"""Characters per chunk when splitting words: the library takes some 450 bytes for each token that it finds."""
_BPE_PIECE = rf" ?[\p{{L}}\p{{M}}]{{1,{_RUN}}}| ?\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]|\s"
_WORD_PIECE = rf"[\p{{L}}\p{{M}}\p{{N}}]+|[^{SEPARATORS}\p{{L}}\p{{M}}\p{{N}}]"

_BPE_SPLIT = pre_tokenizers.Split(Regex(_BPE_PIECE), "isolated")
_WORD_SPLIT = pre_tokenizers.Split(Regex(_WORD_PIECE), "removed", invert=True)


def bpe_splitter() -> pre_tokenizers.PreTokenizer:
    """Build the splitter into the words within which byte pairs merge.

    Returns:
        The library's pre-tokenizer.

    Example:
        >>> [piece for piece, _ in bpe_splitter().pre_tokenize_str(" on 3 May")]
        ['Ġon', 'Ġ3', 'ĠMay']
    """
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # The library's stub declares the argument as a list of the union, which a literal of two subclasses is not.
    stages: list[pre_tokenizers.PreTokenizer] = [_BPE_SPLIT, bytes_]
    return pre_tokenizers.Sequence(stages)


def chunks(text: str, size: int) -> Iterator[str]:
    """Split a long text where `bpe_splitter` splits anyway, because the library takes some 450 bytes per token.

    Args:
        text: any text.
        size: chunk size in characters; slightly more if it is less than two tokens can have.

    Returns:
        The text in parts.

    Example:
        >>> list(chunks("a dog and a cat", 9))
        ['a dog', ' and a', ' cat']
    """
    start = 0
    while len(text) - start > size:
        cut = _cut(text, start, start + size)
        yield text[start:cut]
        start = cut
    yield text[start:]


def _cut(text: str, start: int, stop: int) -> int:
    """Find a position after `start`, the last one up to `stop` if possible, between two words of byte pairs.

    White space only starts a word, and a mark or a digit only ends one. If neither is near, the library decides: what
    it finds after a split point equals what it finds in the whole text, except for the last word, which may continue.
    """
    cut = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
    if cut > start:
        return cut
    for stop_index in range(stop, max(start, stop - _NEAR), -1):
        if category(text[stop_index - 1])[0] in "PSN":
            return stop_index
    pieces = _BPE_SPLIT.pre_tokenize_str(text[start : max(stop, start + 2 * _RUN)])
    last, (begin, _) = pieces[-1]
    return start + (begin or len(last))


def byte_alphabet() -> dict[str, int]:
    """Build the table from the printable characters of byte-level tokens to the bytes they represent.

    Returns:
        256 characters with their byte.

    Example:
        >>> table = byte_alphabet()
        >>> table["a"], table["Ġ"], len(table)
        (97, 32, 256)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unprintable = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(unprintable)}


def words(text: str) -> Iterator[str]:
    """Split text into words and marks, with joiners where a mark touches its neighbor.

    Takes time linear in the text, and memory for its longest word.

    Args:
        text: any text.

    Returns:
        The tokens in order; white space gives none.

    Example:
        >>> list(words("(A t-shirt.)"))
        ['(￭', 'A', 't', '￭-￭', 'shirt', '￭.', '￭)']
    """
    # Delay the last token, because the following text can attach to it or, at the end of a chunk, continue it.
    waiting, begun, last_end = "", list[str](), -1
    for begin in range(0, len(text), _WORD_CHUNK):
        goes_on = begin > 0 and _is_one_word(text[begin - 1 : begin + 1])
        spans = _WORD_SPLIT.pre_tokenize_str(text[begin : begin + _WORD_CHUNK].replace(JOINER, JOINER_IN_TEXT))
        for piece, (start, end) in spans:
            if goes_on:
                begun.append(waiting)
                waiting, goes_on, last_end = piece, False, end
                continue
            touches, is_mark = start == last_end, _is_mark(piece)
            if waiting:
                ending = JOINER if touches and not is_mark else ""
                yield "".join((*begun, waiting, ending)) if begun else waiting + ending
                begun.clear()
            waiting, last_end = JOINER + piece if touches and is_mark else piece, end
        last_end -= _WORD_CHUNK
    if waiting:
        yield "".join((*begun, waiting))


def _is_one_word(two: str) -> bool:
    spans = _WORD_SPLIT.pre_tokenize_str(two)
    return len(spans) == 1 and spans[0][0] == two


def _is_mark(piece: str) -> bool:
    return len(piece) == 1 and category(piece)[0] not in "LMN"


def join_words(pieces: Sequence[str]) -> str:
    """Join words and marks to text: the inverse of `words` up to the kind and amount of white space.

    Args:
        pieces: words and marks, with joiners.

    Returns:
        The text.

    Example:
        >>> join_words(['(￭', 'A', 't', '￭-￭', 'shirt', '￭.', '￭)'])
        '(A t-shirt.)'
    """
    text: list[str] = []
    glued = True
    for piece in pieces:
        if not glued and not piece.startswith(JOINER):
            text.append(" ")
        text.append(bare(piece))
        glued = piece.endswith(JOINER)
    return "".join(text)


def bare(piece: str) -> str:
    """Remove the joiners from a token.

    Args:
        piece: a word or mark.

    Returns:
        Its surface form.

    Example:
        >>> bare("￭-￭")
        '-'
    """
    return piece.strip(JOINER)


def require_text(text: str) -> str:
    """Refuse lone surrogates, which UTF-8 cannot encode.

    Args:
        text: any text.

    Returns:
        The same text.

    Raises:
        DataError: it contains a lone surrogate.

    Example:
        >>> require_text("Mädchen")
        'Mädchen'
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        got = f"the lone surrogate U+{ord(text[error.start]):04X} at character {error.start + 1}"
        hint = "Read the text with a strict UTF-8 decoder."
        raise DataError("text", "characters that UTF-8 can encode", got, hint) from None
    return text


def split_text(text: str, kind: str) -> Iterable[str]:
    """Split a text into the tokens of a kind that has whole tokens.

    Args:
        text: any text.
        kind: "word", "char" or "none".

    Example:
        >>> [list(split_text("it's ok", kind)) for kind in ("word", "none")]
        [['it', "￭'￭", 's', 'ok'], ["it's", 'ok']]
    """
    if kind == "none":
        return [JOINER + token if token.lstrip(JOINER) in SPECIALS else token for token in split_words(text)]
    return words(text) if kind == "word" else text


def join_pieces(pieces: Sequence[str], kind: str) -> str:
    """Join tokens to a text, the inverse of `split_text` up to spaces.

    Example:
        >>> join_pieces(["it", "￭'￭", "s"], "word"), join_pieces(["a", "b"], "none"), join_pieces(["a", "b"], "char")
        ("it's", 'a b', 'ab')
    """
    if kind == "none":
        return " ".join(piece[1:] if piece != piece.lstrip(JOINER) in SPECIALS else piece for piece in pieces)
    return join_words(pieces) if kind == "word" else "".join(pieces)
