"""From a text file to a language model that continues it: training, evaluation, generation, fine-tuning."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from qkv.errors import CheckpointError, ConfigError, DataError, QkvError
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.language_model import LanguageModel
from qkv.tasks.corpora.text import TextInMemory
from qkv.tasks.generate.predict import Generator
from qkv.tasks.generate.recipe import RECIPE
from qkv.tasks.generate.scoring import judge
from qkv.tasks.load import load
from qkv.tasks.origin import open_origin
from qkv.tasks.run import train_run

VERSE = "the cat sat on the mat and the dog ran to the cat.\n"
MODEL = {"width": 32, "heads": 2, "feed_forward": 64, "layers": 1, "context": 16, "dropout": 0.0}


def tables(text: Path, steps: int, **changes: Any) -> dict[str, dict[str, Any]]:
    training = {
        "steps": steps,
        "batch_tokens": 128,
        "validate_every": 20,
        "log_every": 10,
        "warmup": 5,
        "learning_rate": 0.02,
    }
    return {"data": {"text": text}, "model": {**MODEL, **changes}, "training": training}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "verse.txt"
    path.write_text(VERSE * 60, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "verse"
    assert train_run(RECIPE, RECIPE.load_settings(tables(text, 60)), out).exit_code == 0
    return out


@pytest.fixture(scope="module")
def generator(run: Path) -> Generator:
    return load(run, task="generate")


def test_the_text_is_learned(generator: Generator) -> None:
    (found,) = generator.generate(["the cat sat"], tokens=8, temperature=0)
    assert found == VERSE[:19]


def test_figures_after_training_are_those_in_training(run: Path, text: Path, generator: Generator) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if line["kind"] == "validation" and line["better"]][-1]
    whole = VERSE * 60
    for figure in generator.evaluate(whole[int(len(whole) * 0.9) :]):
        assert figure.value == pytest.approx(kept[figure.name], rel=1e-6)


@torch.no_grad()
def test_every_token_but_the_first_is_judged_once_by_its_window() -> None:
    torch.manual_seed(0)
    model = LanguageModel(
        DecoderConfig(size=9, width=8, heads=2, feed_forward=8, layers=1, context=4, dropout=0.0)
    ).eval()
    torch.nn.init.normal_(model.embed.weight)
    ids = torch.randint(4, 9, (11,))
    total = 0.0
    for place in range(1, 11):
        start = (place - 1) // 4 * 4
        scores = model(ids[None, start:place])[0, -1]
        total += float(F.cross_entropy(scores, ids[place]))
    given = TextInMemory.of("x", _Fixed(ids.tolist()))  # type: ignore[arg-type]
    loss, perplexity, bits = judge(model, given._replace(characters=20))
    assert loss.value == pytest.approx(total / 10, rel=1e-5)
    assert perplexity.value == pytest.approx(math.exp(total / 10), rel=1e-5)
    assert bits.value == pytest.approx(total / 20 / math.log(2), rel=1e-5)
    assert "context:4" in loss.signature


class _Fixed:
    unk = 3

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def encode(self, text: str) -> list[int]:
        return self.ids

    def decode(self, ids: list[int]) -> str:
        return "x" * len(ids)


def test_an_epoch_of_batches_trains_on_each_window_once(text: Path) -> None:
    settings = RECIPE.load_settings(tables(text, 1))
    task: Any = RECIPE.read(settings, None)
    model = LanguageModel(DecoderConfig(size=task.tokenizer.size, **MODEL))  # type: ignore[arg-type]
    batches = task.batches(tokens=64, seed=1, epoch=0)
    places = sorted(place for batch in batches for place in batch)
    assert [later - earlier for earlier, later in pairwise(places)] == [16] * (len(places) - 1)
    assert batches != task.batches(tokens=64, seed=1, epoch=1)
    assert batches == task.batches(tokens=64, seed=1, epoch=0)
    assert task.lines([0, len(VERSE), len(VERSE) + 1]) == [1, 2, 2]
    loss, count = task.objective(model, task.collate(batches[0], torch.device("cpu")))
    assert count == 64
    assert loss.item() == pytest.approx(64 * math.log(task.tokenizer.size), rel=0.05), "nothing is known yet"


def test_a_prompt_gets_the_same_alone_in_company_and_streamed(generator: Generator) -> None:
    prompts = ["the cat", "a", "the dog", "on the mat and t"]
    options: dict[str, Any] = {"tokens": 30, "temperature": 0.9, "top_k": 5, "seed": 3}
    together = generator.generate(prompts, **options)
    assert together == [generator.generate([prompt], **options)[0] for prompt in prompts]
    assert together[::-1] == generator.generate(prompts[::-1], **options)
    for prompt, found in zip(prompts, together, strict=True):
        assert prompt + "".join(generator.stream(prompt, **options)) == found
        assert len(found) == len(prompt) + 30, "past the context, and all of it text"


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 1.2}, {"beam": 3}], ids=str)
def test_no_ngram_is_written_twice(generator: Generator, how: dict[str, Any]) -> None:
    """Of prompt and continuation together, beyond the context too where text goes on without end."""
    prompts, tokens = ["the cat", "the ca"], 8 if "beam" in how else 60
    repeated, texts = (generator.generate(prompts, tokens=tokens, no_repeat_ngram=ngram, **how) for ngram in (None, 3))
    ids = [generator.tokenizer.encode(text) for text in texts]
    for row in ids:
        grams = list(zip(row, row[1:], row[2:], strict=False))
        assert len(grams) == len(set(grams))
    assert repeated != texts or "beam" in how
    if "beam" not in how:
        pieces = generator.stream(prompts[0], tokens=tokens, no_repeat_ngram=3, **how)
        assert prompts[0] + "".join(pieces) == texts[0]


def test_another_seed_draws_something_else(generator: Generator) -> None:
    first, second = (generator.generate(["the "], tokens=40, temperature=2.0, seed=seed)[0] for seed in (0, 1))
    assert first != second


@torch.no_grad()
def test_greedy_text_is_the_likeliest_by_the_model_without_a_cache(generator: Generator) -> None:
    (found,) = generator.generate(["the d"], tokens=9, temperature=0)
    ids = generator.tokenizer.encode("the d")
    for _ in range(9):
        scores = generator.model(torch.tensor([ids]))[0, -1]
        ids.append(int(scores[4:].argmax()) + 4)
    assert generator.tokenizer.decode(ids) == found


def test_a_window_of_a_long_prompt_is_its_last_part(generator: Generator) -> None:
    """Sixteen characters are read; the rest is only repeated."""
    prompt = VERSE[:40]
    whole, last = (
        generator.generate([start], tokens=20, temperature=0, long_prompt="window")[0]
        for start in (prompt, prompt[-16:])
    )
    assert whole == prompt + last[16:]
    assert prompt + "".join(generator.stream(prompt, tokens=20, temperature=0, long_prompt="window")) == whole


@torch.no_grad()
@pytest.mark.parametrize("prompt", ["the d", "the cat sat on t"])
def test_text_beyond_the_context_goes_on_from_its_last_half(generator: Generator, prompt: str) -> None:
    (found,) = generator.generate([prompt], tokens=40, temperature=0)
    ids = generator.tokenizer.encode(prompt)
    window = list(ids)
    for _ in range(40):
        scores = generator.model(torch.tensor([window]))[0, -1]
        ids.append(int(scores[4:].argmax()) + 4)
        window = ids[-8:] if len(window) == 16 else [*window, ids[-1]]
    assert generator.tokenizer.decode(ids) == found


def test_prompts_that_cannot_be_read_are_named(generator: Generator) -> None:
    with pytest.raises(DataError, match=r"at most 16 tokens, the model's context; got 20\. .*long_prompt=.window"):
        generator.generate(["the cat sat on the m"])
    (found,) = generator.generate(["the cat sat on the m"], tokens=1, long_prompt="window")
    assert found.startswith("the cat sat on the m")
    with pytest.raises(ConfigError, match='"refuse" or "window"; got "windw"'):
        generator.generate(["the"], long_prompt="windw")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="at most 16 tokens, the model's context"):
        generator.stream("the cat sat on the m")
    with pytest.raises(DataError, match="at least one token"):
        generator.generate([""])
    with pytest.raises(DataError, match="characters of the training text; got 'ß'"):
        generator.generate(["the ß"])
    with pytest.raises(ConfigError, match="tokens: expected an integer, at least 1"):
        generator.generate(["the"], tokens=0)


def test_subwords_stream_whole_characters(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("größer, größer, süßer – 猫が好き。\n" * 80, encoding="utf-8")
    given = tables(path, 12)
    given["tokenizer"] = {"tokenizer": "bpe", "vocabulary": 300}
    train_run(RECIPE, RECIPE.load_settings(given), tmp_path / "run")
    generator = load(tmp_path / "run", task="generate")
    pieces = list(generator.stream("größ", tokens=25, temperature=1.5, seed=2))
    assert "größ" + "".join(pieces) == generator.generate(["größ"], tokens=25, temperature=1.5, seed=2)[0]


def test_an_interrupted_run_goes_on_as_if_it_never_stopped(text: Path, run: Path, tmp_path: Path) -> None:
    given = tables(text, 60)
    given["training"]["steps"] = 40
    schedule = {"schedule": "constant"}
    given["training"] |= schedule
    whole = tables(text, 60)
    whole["training"] |= schedule
    train_run(RECIPE, RECIPE.load_settings(given), tmp_path / "parts")
    train_run(RECIPE, RECIPE.load_settings(whole), tmp_path / "parts")
    train_run(RECIPE, RECIPE.load_settings(whole), tmp_path / "whole")
    weights = [(tmp_path / name / "step-00000060" / "model.safetensors").read_bytes() for name in ("parts", "whole")]
    assert weights[0] == weights[1]


def test_fine_tuning_begins_with_the_weights_and_the_tokenizer_of_the_start(
    run: Path, text: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text(VERSE.replace("cat", "dog") * 40, encoding="utf-8")
    origin = open_origin(run, "generate")
    assert origin is not None
    given = tables(other, 1)
    given["training"]["learning_rate"] = 1e-9
    train_run(RECIPE, RECIPE.load_settings(given), tmp_path / "tuned", origin=origin)
    tuned, start = load(tmp_path / "tuned", task="generate"), load(run, task="generate")
    assert tuned.tokenizer.to_json() == start.tokenizer.to_json()
    for one, two in zip(tuned.model.parameters(), start.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
    with pytest.raises(ConfigError, match="the configuration this run was started with; got from"):
        train_run(RECIPE, RECIPE.load_settings(given), tmp_path / "tuned")


def test_a_start_that_does_not_fit_names_its_tensors(run: Path, text: Path, tmp_path: Path) -> None:
    origin = open_origin(run, "generate")
    with pytest.raises(CheckpointError, match=r"from: .*embed.weight of shape \(\d+, 32\) in place of \(\d+, 64\)"):
        train_run(RECIPE, RECIPE.load_settings(tables(text, 1, width=64)), tmp_path / "wide", origin=origin)
    with pytest.raises(CheckpointError, match=r"no blocks.1.self_attention.* and \d+ more"):
        train_run(RECIPE, RECIPE.load_settings(tables(text, 1, layers=2)), tmp_path / "deep", origin=origin)
    with pytest.raises(CheckpointError, match="from: expected a run of the same task, translate"):
        open_origin(run, "translate")


def test_settings_come_back_as_they_were_shown(text: Path) -> None:
    settings = RECIPE.load_settings(tables(text, 5, window=3, key_heads=1))
    assert RECIPE.load_settings(RECIPE.show_settings(settings)) == settings


def test_a_text_that_is_too_short_says_so(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("abc\n" * 20, encoding="utf-8")
    with pytest.raises(DataError, match="more than 16 tokens, one window of the context; got 8"):
        train_run(RECIPE, RECIPE.load_settings(tables(path, 1)), tmp_path / "out")


def test_a_text_that_nothing_can_follow_is_an_error(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, state = generator._read(torch.tensor([[5]]))
    monkeypatch.setattr(Generator, "_read", lambda self, ids: (torch.full_like(scores, -math.inf), state))
    for temperature in (0.0, 1.0):
        with pytest.raises(QkvError, match="a token with nonzero probability; got none for token 1 after the prompt"):
            generator.generate(["the"], tokens=2, temperature=temperature)
