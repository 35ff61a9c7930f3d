"""Write sentencepieces.json: small SentencePiece models of all settings, with what their own library does with them.

Run where sentencepiece and transformers are installed: python -m tests.data.make_sentencepieces
"""

import base64
import importlib.metadata
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unicodedata import normalize

STORED = Path(__file__).parent / "sentencepieces.json"
LINES = [
    "Tiếng Việt được viết bằng chữ cái",
    "Một người đàn ông ở thư viện mỗi ngày",
    "한국어 문장 입니다 가나다",
    "ガイド の 日本語",
    "find the flat fish, two  spaces",
    "কো கொ क़ हिन्दी",
    "the cat (sat) on 50% mats",
]
MARKS = ["<sep>", "[M]", "mat"]
SETTINGS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "unigram bytes": {"byte_fallback": True, "character_coverage": 0.98},
    "bpe bytes": {"model_type": "bpe", "byte_fallback": True, "character_coverage": 0.98},
    "spaces kept": {"remove_extra_whitespaces": False, "user_defined_symbols": MARKS, "control_symbols": ["<ctrl>"]},
    "no space in front": {"model_type": "bpe", "add_dummy_prefix": False, "user_defined_symbols": MARKS},
    "suffix": {"treat_whitespace_as_suffix": True, "allow_whitespace_only_pieces": True},
    "suffix bpe": {"model_type": "bpe", "treat_whitespace_as_suffix": True, "control_symbols": ["<ctrl>"]},
    "over words": {"split_by_whitespace": False, "user_defined_symbols": [*MARKS, "ｶﾞ"]},
    "unused": {},
    "unused bpe": {"model_type": "bpe"},
}


def probes(count: int, seed: int) -> list[str]:
    """Return texts as they come: decomposed, half-width, with ligatures, unknown characters, marks, and any spaces."""
    random = Random(seed)
    texts = [
        "",
        " ",
        "▁",
        "ｶﾞｲﾄﾞ",
        "ﬁnd the ﬂat ﬁsh",
        "a <s> b </s> <ctrl><unk>",
        "龍馬 💩龍",
        "<sep>x[M] mats",
        "½ ２０",
    ]
    texts += [normalize(form, line) for line in LINES for form in ("NFC", "NFD")]
    letters = "".join(LINES) + normalize("NFD", "".join(LINES)) + " \u00a0\u3000\t▁ｶﾞﾄﾞﬁ龍💩<>/s"
    while len(texts) < count:
        line = normalize(random.choice(["NFC", "NFD"]), random.choice(LINES))
        place = random.randrange(len(line))
        other = random.choice(["  ", "</s>", "<sep>", "[M]", "ｶﾞ", "ﬁ", "龍馬", "<ctrl>", " <unk> "])
        texts += [line[:place] + other + line[place:], "".join(random.choices(letters, k=random.randrange(16)))]
    return texts[:count]


def rules() -> Iterator[str]:
    """Yield a normalization in SentencePiece's form: compositions of the characters in the text, and some more."""
    characters = sorted({*"".join(LINES), *"ﬁﬂ½２０ｶﾞﾄﾞｲ\u3000\u00a0\t"})
    results = {
        normalize(form, character): normalize("NFKC", character) for character in characters for form in ("NFD",)
    }
    results |= {character: normalize("NFKC", character).replace("\t", " ") for character in characters}
    results |= {"ｶﾞ": "ガ", "ﾄﾞ": "ド"}
    for begin in "".join(LINES):  # each step of a composition is a rule, such as that of a syllable without its end
        parts = normalize("NFD", begin)
        results |= {parts[:size]: normalize("NFC", parts[:size]) for size in range(2, len(parts) + 1)}
    for text, result in sorted(results.items()):
        if text != result:
            yield "\t".join(" ".join(f"{ord(character):X}" for character in side) for side in (text, result))


def train(name: str) -> bytes:
    """Train a small model."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    settings, out = SETTINGS[name], io.BytesIO()
    size = {"bpe": 190}.get(settings.get("model_type", ""), 160) + 256 * settings.get("byte_fallback", False)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rules.tsv").write_text("\n".join(rules()) + "\n", encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 3),
            model_writer=out,
            normalization_rule_tsv=str(Path(folder, "rules.tsv")),
            minloglevel=2,
            **{"vocab_size": size, "hard_vocab_limit": False, "character_coverage": 1.0} | settings
            if settings.get("model_type") != "bpe"
            else {"vocab_size": size, "character_coverage": 1.0} | settings,
        )
    model = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
    for index, piece in enumerate(model.pieces):
        if name.startswith("unused") and piece.type == piece.NORMAL and index % 5 == 0:
            piece.type = piece.UNUSED
    model.normalizer_spec.normalization_rule_tsv = model.trainer_spec.model_prefix = ""
    del model.trainer_spec.input[:]
    return bytes(model.SerializeToString())


def theirs(data: bytes, texts: list[str]) -> list[list[Any]]:
    """Return of each text its normal form, pieces, their places, and the text that they give."""
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    answers = []
    for text in texts:
        pieces = library.encode(text, out_type=str)
        body = text.encode()
        spans = [
            [len(body[: piece.begin].decode()), len(body[: piece.end].decode())]
            for piece in library.encode(text, return_type="proto").pieces
        ]
        answers.append([library.normalize(text), pieces, spans, library.decode_pieces(pieces)])
    return answers


FOLDERS: dict[str, dict[str, Any]] = {
    "one vocabulary": {},
    "added tokens": {
        "added_tokens.json": {">>vie<<": 400, "<new>": 401},
        "special_tokens_map.json": {"additional_special_tokens": [">>vie<<"]},
    },
    "listed tokens": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "400": {"content": "<new>", "lstrip": True, "rstrip": True, "special": False},
                "401": {"content": "<more>", "lstrip": False, "rstrip": False, "special": True},
            },
            "extra_special_tokens": ["<more>"],
            "clean_up_tokenization_spaces": True,
        }
    },
    "a vocabulary each": {"tokenizer_config.json": {"separate_vocabs": True}, "target_vocab.json": {}},
}
MARIAN = [
    ">>fra<< Tiếng Việt",
    ">>vie<<mỗi ngày",
    " >>fra<< the cat",
    ">>zzz<< the cat",
    "the >>fra<< cat",
    ">>fra<<",
    ">>",
    "the </s> cat<pad> (sat)</s>",
    "<s> the <unk> cat",
    "the <new> cat <more> sat",
    "it 's the cat , 龍馬",
]


def write_folder(folder: Path, name: str, models: tuple[bytes, bytes], pieces: list[list[str]]) -> None:
    """Write the tokenizer of a Marian model.

    Args:
        folder: where to.
        name: one of `FOLDERS`.
        models: of sources and of targets.
        pieces: of both models.
    """
    vocabularies = []
    for some in pieces if name == "a vocabulary each" else [[*pieces[0], *pieces[1]]] * 2:
        ordered = dict.fromkeys(["</s>", "<unk>", *(piece for piece in some if piece not in ("<s>", "</s>", "<unk>"))])
        vocabularies.append({piece: number for number, piece in enumerate([*ordered, ">>fra<<", "<pad>"])})
    files = {"vocab.json": vocabularies[0], **FOLDERS[name]}
    if "target_vocab.json" in files:
        files["target_vocab.json"] = vocabularies[1]
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    for file, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / file).write_bytes(model)


def marian(folder: Path) -> dict[str, Any]:
    """Return what transformers reads and writes with the tokenizer in a folder."""
    import transformers

    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    sources = [tokenizer(text)["input_ids"] for text in MARIAN]
    targets = [tokenizer(text_target=text)["input_ids"][:-1] for text in MARIAN]
    written = [tokenizer.decode(ids, skip_special_tokens=True) for ids in targets]
    return {"sources": sources, "targets": targets, "written": written}


def main() -> None:
    """Write the file."""
    texts, stored = probes(60, seed=0), {}
    for name in SETTINGS:
        data = train(name)
        stored[name] = {"model": base64.b64encode(data).decode(), "answers": theirs(data, texts)}
    versions = {name: importlib.metadata.version(name) for name in ("sentencepiece", "transformers")}
    folders = {}
    for name in FOLDERS:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), name, *marian_models({key: item["model"] for key, item in stored.items()}))
            folders[name] = marian(Path(folder))
    document = {"versions": versions, "models": stored, "marian": folders}
    STORED.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def marian_models(stored: dict[str, str]) -> tuple[tuple[bytes, bytes], list[list[str]]]:
    """Return the models of sources and of targets, and the pieces of both."""
    from sentencepiece import SentencePieceProcessor

    models = tuple(base64.b64decode(stored[name]) for name in ("unigram", "bpe"))
    readers = [SentencePieceProcessor(model_proto=model) for model in models]
    pieces = [reader.id_to_piece(list(range(reader.get_piece_size()))) for reader in readers]
    return (models[0], models[1]), pieces


if __name__ == "__main__":
    main()
