"""The flags of attention, the same in every task: what they set, and what is refused before any data is read."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import refused, run, succeeded

from qkv.nn.mechanism import LOCATION
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import SCORES

TASKS = ("translate", "generate", "classify", "tag")
ATTENDS = {task: ["--model", "transformer"] if task in ("classify", "tag") else [] for task in TASKS}


def config(task: str, *flags: str) -> dict[str, Any]:
    return tomllib.loads(succeeded(run("train", task, *flags, "--print-config")).stdout)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--score", "general"], {"score": "bilinear", "normalizer": "softmax"}),
        (["--score", "triangular"], {"score": "triangular", "normalizer": "sum"}),
        (["--score", "nonlocal-concat", "--normalizer", "sigmoid"], {"score": "nonlocal_concat"}),
        (["--score", "gaussian", "--bandwidth", "2"], {"bandwidth": 2.0}),
        (["--score", "epanechnikov", "--power", "3"], {"power": 3.0}),
        (["--normalizer", "entmax", "--alpha", "1.25"], {"alpha": 1.25}),
        (["--normalizer", "entmax", "--alpha", "learned"], {"alpha": "learned"}),
        (["--score", "dot", "--sinks"], {"sinks": True}),
        (["--window", "5", "--heads", "2", "--dropout", "0.25"], {"window": 5, "heads": 2, "dropout": 0.25}),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_a_flag_is_a_setting_of_every_task(
    task: str, flags: list[str], expected: dict[str, Any], tmp_path: Path
) -> None:
    shown = succeeded(run("train", task, *ATTENDS[task], *flags, "--print-config")).stdout
    model = tomllib.loads(shown)["model"]
    assert expected.items() <= model.items()
    # What is printed is read again, and means the same.
    (tmp_path / "run.toml").write_text(shown)
    assert succeeded(run("train", task, "--config", tmp_path / "run.toml", "--print-config")).stdout == shown


@pytest.mark.parametrize("task", TASKS)
def test_training_has_the_same_flags_in_every_task(task: str) -> None:
    flags = ["--batch-tokens", "500", "--epochs", "3", "--patience", "2", "--learning-rate", "0.01", "--seed", "7"]
    training = config(task, *flags, "--label-smoothing", "0.2")["training"]
    expected = {
        "batch_tokens": 500,
        "epochs": 3,
        "patience": 2,
        "learning_rate": 0.01,
        "seed": 7,
        "label_smoothing": 0.2,
    }
    assert expected.items() <= training.items()
    assert "steps" not in training
    assert config(task, "--batch-size", "16")["training"]["batch_size"] == 16
    assert config(task, "--tokenizer", "none")["tokenizer"]["tokenizer"] == "none"


NOWHERE = {
    "translate": ["--data", "/nowhere.tsv"],
    "generate": ["--text", "/nowhere.txt"],
    "classify": ["--data", "/nowhere.tsv"],
    "tag": ["--data", "/nowhere.conll"],
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--score", "dot", "--normalizer", "sum"], ["--normalizer", "gaussian", "never negative"]),
        (["--alpha", "1.5"], ["--alpha", "--normalizer entmax"]),
        (["--normalizer", "entmax", "--alpha", "high"], ["--alpha", "number above 1", "learned"]),
        (["--normalizer", "sparsemax", "--sinks"], ["--sinks", "--normalizer softmax"]),
        (["--score", "dot", "--bandwidth", "2"], ["--bandwidth", "gaussian"]),
        (["--score", "gaussian", "--power", "2"], ["--power", "--score epanechnikov"]),
        (["--score", "concat"], ["--score", "additive", "nonlocal-concat"]),
        (["--score", "adative"], ["--score", 'Did you mean "additive"?']),
        (["--score", "hard"], ["--score", "a normalizer", "--normalizer hard"]),
        (["--normalizer", "scaled-dot"], ["--normalizer", "a score", "--score scaled-dot"]),
        (["--normalizer", "softmin"], ["--normalizer", 'Did you mean "softmax"?']),
        (["--score", "none"], ["--score", "a Transformer is attention"]),
        (["--heads", "7"], ["--heads", "a divisor"]),
        (["--steps", "3", "--epochs", "3"], ["--epochs", "no --steps beside it"]),
        (["--batch-tokens", "9", "--batch-size", "3"], ["--batch-size", "no --batch-tokens beside it"]),
    ],
    ids=lambda part: " ".join(part) if part[0].startswith("--") else "",
)
def test_what_has_no_meaning_is_refused_before_data_is_read(
    task: str, flags: list[str], words: list[str], tmp_path: Path
) -> None:
    done = run("train", task, *ATTENDS[task], *NOWHERE[task], "--out", tmp_path / "out", *flags)
    refused(done, *words)
    assert "nowhere" not in done.stderr


@pytest.mark.parametrize(
    ("task", "flags", "words"),
    [
        ("translate", ["--model", "gru", "--window", "3"], ["--window", "--encoder transformer"]),
        ("translate", ["--model", "gru", "--cross-score", "dot"], ["--cross-score", "--model transformer", "--score"]),
        ("translate", ["--model", "gru", "--positions", "none"], ["--positions", "--model transformer"]),
        ("translate", ["--memory", "split"], ["--memory", "--model gru"]),
        ("translate", ["--wiring", "luong"], ["--wiring", "--model gru"]),
        ("translate", ["--encoder", "grv"], ["--encoder", "gru"]),
        ("translate", ["--decoder", "gru", "--heads", "3"], ["--heads", "a divisor of --hidden"]),
        ("translate", ["--model", "gru", "--width", "1"], ["--width", "at least 2"]),
        ("generate", ["--model", "gru", "--positions", "rotary"], ["--positions", "--model transformer"]),
        ("translate", ["--model", "gru", "--heads", "2", "--score", "none"], ["--heads", "1 without attention"]),
        ("translate", ["--score", "location"], ["--score", "only recurrent decoders"]),
        ("translate", ["--model", "gru", "--alignment", "monotonic-1", "--wiring", "luong"], ["--wiring", "soft"]),
        ("translate", ["--model", "gru", "--alignment", "monotonic-0", "--score", "cosine"], ["--score", "scaled-dot"]),
        ("translate", ["--model", "gru", "--ensemble", "3", "--both-directions"], ["--ensemble", "an even number"]),
        ("generate", ["--model", "gru", "--score", "location"], ["--score", "only recurrent decoders"]),
        ("generate", ["--model", "grv"], ["--model", 'Did you mean "gru"?']),
        ("classify", ["--heads", "2"], ["--heads", "a Transformer"]),
        ("classify", ["--window", "2"], ["--window", "a Transformer"]),
        ("classify", ["--pool", "mean", "--score", "dot"], ["--score", "Nothing attends"]),
        ("tag", ["--score", "dot"], ["--score", "--model transformer"]),
        ("generate", ["--score", "mlp", "--positions", "rotary"], ["--positions", "sinusoidal"]),
        ("generate", ["--score", "boxcar", "--positions", "alibi"], ["--positions", "squared-distance"]),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part,
)
def test_a_flag_without_meaning_for_a_model_says_for_which_it_has_one(
    task: str, flags: list[str], words: list[str], tmp_path: Path
) -> None:
    refused(run("train", task, *NOWHERE[task], "--out", tmp_path / "out", *flags), *words)


@pytest.mark.parametrize(
    ("flags", "kind", "encoder"),
    [
        (["--encoder", "transformer", "--decoder", "gru"], "gru", "transformer"),
        (["--encoder", "lstm", "--decoder", "transformer"], "transformer", "lstm"),
        (["--encoder", "gru", "--decoder", "gru"], "gru", None),
        (["--model", "rnn"], "rnn", None),
    ],
)
def test_encoder_and_decoder_can_be_of_two_kinds(flags: list[str], kind: str, encoder: str | None) -> None:
    model = config("translate", *flags)["model"]
    assert (model["model"], model.get("encoder")) == (kind, encoder)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    words = [f"{a}{b}{c}" for a in "abc" for b in "abc" for c in "abc"]
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    return path


WIRED = ("--wiring", "luong", "--memory", "split")


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--model", "gru", "--heads", "2", "--score", "triangular"], marks=pytest.mark.slow),
        ["--model", "lstm", "--score", "location", "--normalizer", "entmax", "--decoder-layers", "2"],
        ["--model", "gru", "--alignment", "monotonic-0", "--score", "scaled-dot"],
        pytest.param(
            ["--encoder", "transformer", "--decoder", "lstm", "--decoder-layers", "2", "--score", "cosine"],
            marks=pytest.mark.slow,
        ),
        ["--encoder", "gru", "--score", "gaussian", "--cross-score", "learned", "--window", "1", "--heads", "2"],
        pytest.param(
            ["--model", "rnn", "--normalizer", "entmax", "--alpha", "learned", *WIRED], marks=pytest.mark.slow
        ),
    ],
    ids=" ".join,
)
def test_a_command_trains_resumes_and_translates_with_attention(flags: list[str], pairs: Path, tmp_path: Path) -> None:
    small = ["--data", pairs, "--tokenizer", "char", "--width", "16", "--batch-size", "9", "--out", tmp_path / "run"]
    succeeded(run("train", "translate", *small, *flags, "--steps", "2"))
    done = succeeded(run("train", "translate", *small, *flags, "--steps", "3"))
    assert "step" in done.stderr
    written = succeeded(
        run("translate", tmp_path / "run", "--beam", "2", "--attention", tmp_path / "a.png", feed="ab\n")
    )
    assert written.stdout.count("\n") == 1
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_recurrent_language_model_attends_to_its_own_states(pairs: Path, tmp_path: Path) -> None:
    small = ["--text", pairs, "--width", "16", "--context", "8", "--batch-size", "4", "--out", tmp_path / "run"]
    succeeded(
        run("train", "generate", *small, "--model", "lstm", "--score", "gaussian", "--window", "3", "--steps", "2")
    )
    done = succeeded(run("generate", tmp_path / "run", "--prompt", "abc", "--tokens", "20"))
    assert len(done.stdout) > 20


@pytest.mark.parametrize("flags", [["--score", "boxcar"], ["--normalizer", "hard"]], ids=lambda flags: flags[1])
def test_scores_without_gradient_train_with_one_warning(flags: list[str], pairs: Path, tmp_path: Path) -> None:
    small = ["--data", pairs, "--tokenizer", "char", "--model", "gru", "--width", "8", "--steps", "1"]
    done = succeeded(run("train", "translate", *small, *flags, "--out", tmp_path / "run"))
    assert done.stderr.count("warning") == 1
    assert f"warning: {' '.join(flags)} gives its scores no gradient" in done.stderr


def test_a_kernel_that_sees_no_key_is_an_error_that_says_what_to_change(pairs: Path, tmp_path: Path) -> None:
    flags = ["--score", "epanechnikov", "--bandwidth", "0.001", "--width", "16"]
    done = run("train", "translate", "--data", pairs, "--tokenizer", "char", *flags, "--out", tmp_path / "run")
    refused(done, "--bandwidth", "queries and keys lie", "omit it")


def test_former_names_of_tokens_are_taken_with_a_note() -> None:
    done = succeeded(run("train", "generate", "--tokens", "subwords", "--print-config"))
    assert tomllib.loads(done.stdout)["tokenizer"]["tokenizer"] == "bpe"
    assert '"subwords" is now called bpe' in done.stderr


def test_page_and_help_name_every_mechanism() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "train.md").read_text(encoding="utf-8")
    shown = " ".join(succeeded(run("train", "translate", "--help")).stdout.replace("│", " ").split())
    for name in (*SCORES, *SCORES.aliases, *NORMALIZERS, LOCATION):
        assert f"`{name.replace('_', '-')}`" in page
        assert name.replace("_", "-") in shown
    for topic in ("Data", "Columns", "Model", "Attention", "Training", "Run"):
        assert f"─ {topic} ─" in shown


@pytest.mark.parametrize("flags", [[], ["--sinks"]])
def test_a_softmax_of_a_kernel_trains_with_one_warning(flags: list[str], pairs: Path, tmp_path: Path) -> None:
    small = ["--data", pairs, "--tokenizer", "char", "--model", "gru", "--width", "8", "--steps", "1"]
    blurred = ["--score", "gaussian", "--normalizer", "softmax"]
    done = succeeded(run("train", "translate", *small, *blurred, *flags, "--out", tmp_path / "run"))
    assert done.stderr.count("warning: --score gaussian --normalizer softmax") == 1
    assert "squared-distance" in done.stderr


def test_sinks_of_a_kernel_lead_to_the_softmax_of_its_exponents(pairs: Path, tmp_path: Path) -> None:
    small = ["--data", pairs, "--score", "gaussian", "--sinks", "--out", tmp_path / "run"]
    refused(run("train", "translate", *small), "--sinks", "--score squared-distance")
