"""Models of several languages: codes are around a source where theirs puts them, and a target begins with its own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tests.cli.command import refused, run, succeeded
from tests.hub.export_scripts import answers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

import qkv
from qkv.errors import CheckpointError, ConfigError
from qkv.hub.families.load import FAMILIES
from qkv.hub.families.tokenizer import read_tokenizer
from qkv.hub.folder import Folder
from qkv.serving.models import open_models, read_request
from qkv.tasks.exporting import export
from qkv.tasks.translate.decoding import Decoding

M2M = Path(__file__).parent / "families" / "m2m_100"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
CODES = ["eng_Latn", "fra_Latn", "en_XX", "fr_XX", "__en__", "__fr__"]
TEXT = ["the cat sat on the mat", "a hat on the cat", "that cat ate the hat"]
WMT21 = ("en", "ha", "is", "ja", "cs", "ru", "zh", "de")
CLASSES = {
    "NllbTokenizer": ("fra_Latn", ["fra_Latn"], ["</s>"]),
    "NllbTokenizerFast": (None, ["eng_Latn"], ["</s>"]),
    "MBartTokenizer": ("fr_XX", [], ["</s>", "fr_XX"]),
    "MBart50Tokenizer": (None, ["en_XX"], ["</s>"]),
}
"""For classes a source's language and what is before and after a text."""


def folder_of(folder: Path, config: dict[str, Any], *, of: Path = M2M, **settings: Any) -> Path:
    """Write a model with a tokenizer of some languages."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=36, special_tokens=SPECIAL, show_progress=False)
    library.train_from_iterator(TEXT, trainer)
    library.add_special_tokens([AddedToken(code, special=True) for code in CODES])
    shutil.copytree(of, folder)
    library.save(str(folder / "tokenizer.json"))
    table = {**json.loads((of / "config.json").read_text()), "pad_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps({**table, "decoder_start_token_id": 2, **config}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("name", CLASSES)
def test_the_code_of_a_source_is_where_its_class_puts_it(name: str, tmp_path: Path) -> None:
    language, before, after = CLASSES[name]
    settings = {} if language is None else {"src_lang": language}
    tokenizer = qkv.load(folder_of(tmp_path / "model", {}, tokenizer_class=name, **settings)).tokenizer
    pieces = tokenizer.pieces(tokenizer.encode("the cat"))
    assert pieces[: len(before)] == before
    assert pieces[len(pieces) - len(after) :] == after
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"


@pytest.mark.parametrize("settings", [{}, {"src_lang": "fra_Latn"}, {"legacy_behaviour": True}], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_sources_of_nllb_are_those_of_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.10")
    more = {"additional_special_tokens": CODES[:2], **settings}
    folder = folder_of(tmp_path / "model", {}, tokenizer_class="NllbTokenizer", **more)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = qkv.load(folder).tokenizer
    for text in [*TEXT, "", "a  hat"]:
        assert ours.encode(text) == theirs(text).input_ids


PIECES = ["▁the", "▁cat", "▁hat", "▁", "t", "h", "e", "c", "a"]
NAMED = {
    "NllbTokenizer": ["fra_Latn", "zho_Hans"],
    "MBartTokenizer": ["fr_XX", "zh_CN"],
    "MBart50Tokenizer": ["fr_XX", "zh_CN"],
}
"""For classes codes of languages that are not their usual one."""


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.filterwarnings("ignore")
def test_sources_of_a_named_language_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.10")
    names = [*SPECIAL, *PIECES]
    numbers = {piece: number for number, piece in enumerate(names)}
    of_pieces = {"vocab": numbers, "merges": []} if name == "NllbTokenizer" else {"vocab": [(x, -1.0) for x in names]}
    theirs = getattr(transformers, name)(**of_pieces)
    shutil.copytree(M2M, tmp_path / "model")
    theirs.save_pretrained(tmp_path / "model")
    ours = read_tokenizer(Folder(tmp_path / "model"), FAMILIES["m2m_100"], len(theirs))
    assert ours is not None
    for code in NAMED[name]:
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model", src_lang=code)
        named = ours.with_languages(code, code)
        for text in ["the cat", "a  hat the", "", f"{code} the cat", f"the cat {code}"]:
            assert named.encode(text) == theirs(text).input_ids
        assert named.encode("the cat", target=True)[0] == theirs.convert_tokens_to_ids(code)
        assert named.encode("the cat", target=True)[1:] == ours.encode("the cat", target=True)
    assert ours.encode("the cat") == theirs.__class__.from_pretrained(tmp_path / "model")("the cat").input_ids


def test_a_source_of_m2m_begins_with_its_code(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", {}, tokenizer_class="M2M100Tokenizer", src_lang="fr")
    tokenizer = qkv.load(folder).tokenizer
    assert tokenizer.pieces(tokenizer.encode("the cat")) == ["__fr__", "▁the", "▁cat", "</s>"]
    for code in ("en", "__en__"):
        named = tokenizer.with_languages(code, "fr")
        assert named.pieces(named.encode("the cat")) == ["__en__", "▁the", "▁cat", "</s>"]
        assert named.pieces(named.encode("the cat", target=True)) == ["__fr__", "▁the", "▁cat"]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_language_is_the_same_by_command_server_and_python(side: str, tmp_path: Path) -> None:
    name = f"{side}_language"
    folder = folder_of(tmp_path / "model", {}, tokenizer_class="NllbTokenizer")
    translator = qkv.load(folder)
    how = Decoding(max_tokens=6, **{name: "fra_Latn"})
    found = translator.translate_fully(TEXT, how)
    if side == "source":
        other = folder_of(tmp_path / "other", {}, tokenizer_class="NllbTokenizer", src_lang="fra_Latn")
        expected = qkv.load(other).translate_fully(TEXT, Decoding(max_tokens=6))
    else:
        expected = translator.translate_fully(TEXT, Decoding(max_tokens=6, prefix="fra_Latn"))
    assert [answer.target_tokens for answer in found] == [answer.target_tokens for answer in expected]
    assert [answer.source_tokens for answer in found] == [answer.source_tokens for answer in expected]
    assert found[0].source_tokens[0] == ("fra_Latn" if side == "source" else "eng_Latn")
    flag = f"--{side}-language"
    done = succeeded(run("translate", folder, flag, "fra_Latn", "--max-tokens", "6", feed="\n".join(TEXT)))
    texts = [answer.text for answer in found]
    assert done.stdout.splitlines() == texts
    (model,) = open_models([folder], "cpu").values()
    request = read_request({"inputs": TEXT, "max_tokens": 6, name: "fra_Latn"}, model)
    assert [row["translations"][0]["text"] for row in model.compute(request.inputs, request.settings)] == texts  # type: ignore[index]
    with pytest.raises(ConfigError, match=f'{name}: expected the code of a language of the model; got "fra_Lat"'):
        translator.translate(TEXT, Decoding(**{name: "fra_Lat"}))
    refused(run("translate", "example", flag, "fra_Latn", feed="Hallo ."), flag)


def test_a_tokenizer_that_adds_no_code_refuses_a_source_language(tmp_path: Path) -> None:
    translator = qkv.load(folder_of(tmp_path / "model", {}))
    with pytest.raises(ConfigError, match="source_language: expected a tokenizer that adds its code"):
        translator.translate(TEXT, Decoding(source_language="fra_Latn"))
    (answer,) = translator.translate_fully(["the cat"], Decoding(max_tokens=3, target_language="fra_Latn"))
    assert answer.target_tokens[0] == "fra_Latn"


def test_a_language_that_the_tokenizer_lacks_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", {}, tokenizer_class="NllbTokenizer", src_lang="deu_Latn")
    with pytest.raises(CheckpointError, match="src_lang: expected a language code of the tokenizer; got 'deu_Latn'"):
        qkv.load(folder)


def test_a_target_begins_with_the_code_that_is_forced(tmp_path: Path) -> None:
    names = {"tokenizer_class": "NllbTokenizer"}
    plain = qkv.load(folder_of(tmp_path / "plain", {}, **names))
    numbers = {code: plain.tokenizer.encode(code, target=True) for code in CODES[:2]}
    forced = qkv.load(folder_of(tmp_path / "forced", {"forced_bos_token_id": numbers["fra_Latn"][0]}, **names))
    for text in ("hat", "  hat", "你好", "zzz hat", ""):
        assert forced.tokenizer.encode(text, target=True) == [
            *numbers["fra_Latn"],
            *plain.tokenizer.encode(text, target=True),
        ]
    assert forced.tokenizer.encode("eng_Latn", target=True) == numbers["eng_Latn"]
    assert (
        type(forced.tokenizer).from_json(forced.tokenizer.to_json()).encode("hat", target=True)[0]
        == numbers["fra_Latn"].pop()
    )
    saved = qkv.load(qkv.hub.save(forced, tmp_path / "saved"))
    assert saved.tokenizer.encode("hat", target=True) == forced.tokenizer.encode("hat", target=True)
    how = Decoding(max_tokens=6)
    written = {
        "asked": plain.translate_fully(TEXT, Decoding(max_tokens=6, prefix="fra_Latn")),
        "forced": forced.translate_fully(TEXT, how),
        "replaced": forced.translate_fully(TEXT, Decoding(max_tokens=6, prefix="eng_Latn")),
    }
    first = {name: {answer.target_tokens[0] for answer in answers} for name, answers in written.items()}
    assert first == {"asked": {"fra_Latn"}, "forced": {"fra_Latn"}, "replaced": {"eng_Latn"}}
    assert [answer.text for answer in written["forced"]] == [answer.text for answer in written["asked"]]
    assert "fra_Latn" not in written["forced"][0].text


@pytest.mark.parametrize("code", CODES[:2])
def test_the_viewer_shows_the_translation_into_the_forced_language(code: str, tmp_path: Path) -> None:
    names = {"tokenizer_class": "NllbTokenizer"}
    (number,) = qkv.load(folder_of(tmp_path / "plain", {}, **names)).tokenizer.encode(code, target=True)
    forced = qkv.load(folder_of(tmp_path / "forced", {"forced_bos_token_id": number}, **names))
    seen = forced.scene(TEXT[0]).sequences["target"]
    assert seen[0] == code
    assert seen == forced.translate_fully(TEXT)[0].target_tokens


@pytest.mark.parametrize("name", ["bart", "mbart"])
def test_a_translation_ends_with_the_positions_that_were_learned(name: str, tmp_path: Path) -> None:
    config = json.loads((M2M.parent / name / "config.json").read_text())
    translator = qkv.load(folder_of(tmp_path / "model", config, of=M2M.parent / name))
    most = config["max_position_embeddings"]
    text = " ".join(["the cat"] * (most // 2))[:most]
    for how in (Decoding(), Decoding(beam=2), Decoding(max_tokens=most)):
        (answer,) = translator.translate_fully([text], how)
        assert len(answer.target_tokens) - (not answer.finished) <= most
    with pytest.raises(ConfigError, match=f"max_tokens: expected at most {most} for this model; got {most + 1}"):
        translator.translate([text], Decoding(max_tokens=most + 1))


def numbered_folder(folder: Path) -> Path:
    """Write a model with the files of M2M-100: SentencePiece, numbers of its pieces, and the codes that follow them."""
    sentencepiece = pytest.importorskip("sentencepiece")
    shutil.copytree(M2M, folder)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 3),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=24,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.vocab").unlink()
    reader = sentencepiece.SentencePieceProcessor(str(folder / "sentencepiece.bpe.model"))
    pieces = [*SPECIAL, *(reader.id_to_piece(number) for number in range(3, reader.get_piece_size()))]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    table = {"additional_special_tokens": [f"__{code}__" for code in WMT21]}
    (folder / "special_tokens_map.json").write_text(json.dumps(table))
    table = {"language_codes": "wmt21", "src_lang": "ru", "tokenizer_class": "M2M100Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(table))
    return folder


@pytest.mark.filterwarnings("ignore")
def test_pieces_of_m2m_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = qkv.load(numbered_folder(tmp_path / "model"))
    texts = [*TEXT, "the  cat ", "zebra", "", "  ", "a hat __de__ on", "</s> the", "<s>a", ">>fr<< hat"]
    for language in (None, "de", "zh"):
        named = {} if language is None else {"src_lang": language}
        theirs = transformers.M2M100Tokenizer.from_pretrained(tmp_path / "model", **named)
        tokenizer = ours.tokenizer.with_languages(language, "ja")
        for text in texts:
            assert tokenizer.encode(text) == theirs(text).input_ids, text
        code = theirs.get_lang_id("ja")
        assert tokenizer.encode("the cat", target=True) == [code, *theirs("the cat").input_ids[1:-1]]
        ids = [code, *theirs("a hat on the cat").input_ids[1:], 39]
        assert tokenizer.decode(ids) == theirs.decode(ids[:-1], skip_special_tokens=True) == "a hat on the cat"
    theirs.save_pretrained(tmp_path / "saved")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / "model" / name, tmp_path / "saved" / name)
    saved = qkv.load(tmp_path / "saved").tokenizer
    assert [saved.encode(text) for text in texts] == [tokenizer.encode(text) for text in texts]
    stored = type(saved).from_json(saved.to_json())
    assert [stored.encode(text) for text in texts] == [tokenizer.encode(text) for text in texts]
    written = ours.translate(TEXT, Decoding(target_language="ja", max_tokens=6))
    again = qkv.load(qkv.hub.save(ours, tmp_path / "again"))
    assert again.translate(TEXT, Decoding(target_language="ja", max_tokens=6)) == written


def test_files_of_marian_win_over_one_for_both_sides(tmp_path: Path) -> None:
    plain = qkv.load(M2M.parent / "marian").tokenizer
    shutil.copytree(M2M.parent / "marian", tmp_path / "model")
    shutil.copy(tmp_path / "model" / "source.spm", tmp_path / "model" / "sentencepiece.bpe.model")
    tokenizer = qkv.load(tmp_path / "model").tokenizer
    for text in TEXT:
        assert tokenizer.encode(text) == plain.encode(text)


def test_a_source_of_a_language_without_a_code_is_refused(tmp_path: Path) -> None:
    folder = numbered_folder(tmp_path / "model")
    (folder / "special_tokens_map.json").unlink()
    with pytest.raises(CheckpointError, match="a language whose code the folder lists; got '__ru__'"):
        qkv.load(folder)


@pytest.mark.filterwarnings("ignore")
def test_forced_translations_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = folder_of(tmp_path / "model", {}, tokenizer_class="NllbTokenizer")
    code = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("fra_Latn")
    ours, model = qkv.load(folder), transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    for text, answer in zip(TEXT, ours.translate_fully(TEXT, Decoding(max_tokens=6, prefix="fra_Latn")), strict=True):
        ids = torch.tensor([ours.tokenizer.encode(text)])
        options = {"max_new_tokens": 6, "num_beams": 1, "do_sample": False, "suppress_tokens": [1]}
        expected = model.generate(ids, forced_bos_token_id=code, forced_eos_token_id=None, **options)[0, 1:].tolist()
        written = expected[: expected.index(2)] if 2 in expected else expected
        assert list(answer.target_tokens[:-1]) == ours.tokenizer.pieces(written)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_script_of_an_export_begins_with_the_code_that_is_forced(tmp_path: Path) -> None:
    for library in ("onnxruntime", "onnxscript"):
        pytest.importorskip(library)
    number = tokenizers.Tokenizer.from_file(str(folder_of(tmp_path / "plain", {}) / "tokenizer.json")).token_to_id(
        "fra_Latn"
    )
    folder = folder_of(tmp_path / "forced", {"forced_bos_token_id": number}, tokenizer_class="NllbTokenizer")
    export(folder, "onnx", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "about.json").read_text())["forced"] == [number]
    assert answers(tmp_path / "out", "onnx", TEXT) == qkv.load(folder).translate(TEXT)
