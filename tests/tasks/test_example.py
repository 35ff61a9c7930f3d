"""The run in the package: its name works wherever a run is named, and it translates what its grammar writes."""

import re
from pathlib import Path

import pytest
from tests.cli.command import run, succeeded
from tests.pairs import fast

import qkv
from qkv.data.phrases import generate
from qkv.errors import CheckpointError
from qkv.tasks.example_run import FOLDER, SENTENCES, is_example, outside_grammar
from qkv.view.answers.opening import first_shown


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 1_000_000


def test_it_translates_new_sentences() -> None:
    translator = qkv.load("example", task="translate")
    pairs = generate(25_000, seed=0)[-100:]  # beyond those of its training
    texts = translator.translate([pair.source for pair in pairs])
    right = sum(text == pair.target for text, pair in zip(texts, pairs, strict=True))
    assert right >= 80, "more than four of five, word for word"


LINKS = "0-0 1-1 2-2 3-3 7-4 4-5 5-6 6-7 8-8"
"""Of the first sentence, by hand, source word first."""


def test_its_words_are_aligned_without_a_flag(tmp_path: Path) -> None:
    """Each link is read at the step that wrote the word, in `qkv align`, in a translation, and in the first map."""
    translator = qkv.load("example", task="translate")
    found = translator.translate_fully([SENTENCES[0]], attention=True)[0]
    for name, text in (("s", SENTENCES[0]), ("t", found.text)):
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    files = ["--source", tmp_path / "s", "--target", tmp_path / "t"]
    assert set(succeeded(run("align", "example", *files)).stdout.split()) == set(LINKS.split())
    assert found.weights is not None
    scene = translator.scene(SENTENCES[0])
    layer, head = first_shown(scene)
    shown = scene.layers[layer].map().dense()
    for weights in (found.weights, shown.mean(0) if head is None else shown[head]):
        assert {f"{s}-{t}" for t, s in enumerate(weights.argmax(-1)[:-1].tolist())} == set(LINKS.split())


def test_its_words_are_the_grammars() -> None:
    tokenizer = qkv.load("example", task="translate").tokenizer
    for sentence in SENTENCES:
        assert tokenizer.unk not in tokenizer.encode(sentence)


def test_commands_take_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert succeeded(run("translate", "example", feed=SENTENCES[0] + "\n")).stdout.strip().endswith(".")
    succeeded(run("view", "example", "--export", "page.html"))
    assert Path("page.html").stat().st_size > 10_000


STRANGE = {
    "ein Hund": "period",
    "Ein Hund .": "verb",
    "ein Hund schläft .": "capital",
    "Hallo Welt .": '"Hallo", "Welt"',
    "The dog sleeps .": "verb",
    "Schläft die Katze ?": '"?"',
}


def test_what_its_grammar_writes_is_read_without_a_word() -> None:
    tokenizer = qkv.load("example", task="translate").tokenizer
    sources = [pair.source for pair in generate(3000, seed=5)]
    assert outside_grammar(sources, 1, tokenizer) is None
    assert outside_grammar([source.replace(" .", ".").replace(" ,", ",") for source in sources], 1, tokenizer) is None
    assert outside_grammar(["", " "], 1, tokenizer) is None


@pytest.mark.parametrize("line", fast(STRANGE, "ein Hund", "Hallo Welt ."))
def test_commands_say_once_what_it_can_read(line: str) -> None:
    feed = f"{SENTENCES[1]}\n" + f"{line}\n" * 15
    done = succeeded(run("translate", "example", feed=feed))
    assert len(done.stdout.splitlines()) == 16
    (said,) = (one for one in done.stderr.splitlines() if one.startswith("qkv:"))
    for words in (SENTENCES[0], "line 2", STRANGE[line]):
        assert words in said
    assert not succeeded(run("translate", "example", "--quiet", feed=feed)).stderr
    assert not succeeded(run("translate", "example", feed=SENTENCES[1])).stderr


def test_the_viewer_says_what_it_can_read(tmp_path: Path) -> None:
    page = str(tmp_path / "page.html")
    strange = "ein Hund schläft ."  # translated into few words, so that the page is small
    assert SENTENCES[0] in succeeded(run("view", "example", "--text", strange, "--export", page)).stderr
    assert SENTENCES[0] not in succeeded(run("view", "example", "--text", SENTENCES[1], "--export", page)).stderr


def test_documents_give_it_sentences_that_it_translates() -> None:
    """Every sentence that follows its name in a command or a block of code."""
    root, sentences = Path(__file__).parents[2], set()
    for path in (root / "README.md", *(root / "docs").rglob("*.md")):
        for block in re.findall(r"```(?:sh|python)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            if re.search(r"translate example|load\(.example", block):
                code = re.sub(r"# .*", "", block)  # answers stand in comments
                sentences |= set(re.findall(r"[\"']([^\"'\n]*[A-ZÄÖÜ][^\"'\n]* \.)[\"']", code))
    tokenizer = qkv.load("example", task="translate").tokenizer
    assert sentences >= {SENTENCES[0]}
    assert outside_grammar(sorted(sentences), 1, tokenizer) is None


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("example").mkdir()
    assert not is_example(Path("example"))
    with pytest.raises(CheckpointError):
        qkv.load("example")
