"""What a model that reads a text attends to: self-attention of its layers, or of the last one as a picture."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qkv.data.batches import device_of
from qkv.errors import ConfigError, DataError, setting
from qkv.models.language_model import LanguageModel
from qkv.models.reader import MaskedLanguageModel, TextTagger
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.nn.attention import Attention
from qkv.recording.recorder import record
from qkv.tasks.rerunning import with_answers
from qkv.view.scene import ModelAnswer, Scene

T = TypeVar("T")
_TITLE = 60


def attention_names(model: nn.Module) -> list[str]:
    """Return the paths of a model's attentions, in the order of the model."""
    return [name for name, module in model.named_modules() if isinstance(module, Attention)]


def expect_attention(model: nn.Module) -> None:
    """Refuse a model without attention.

    Raises:
        ConfigError: it has none; the message says what to train instead.
    """
    if not attention_names(model):
        hint = (
            "Train with " + setting("model", "transformer") + "."
            if isinstance(model, TextTagger)
            else "Train with a score or a pool."
        )
        raise ConfigError("run", "a model with attention", f"a {type(model).__name__} without", hint)


def read_ids(loaded: Any, ids: Tensor, begins: tuple[int, ...] = ()) -> Tensor:
    """Run a loaded language model, classifier or tagger on tokens, for recording.

    Args:
        loaded: the model with its tokenizer.
        ids: tokens (1, S), int64.
        begins: where the words begin, for a tagger; those beyond the tokens are left out.

    Returns:
        What the model returns, its scores.
    """
    if isinstance(loaded.model, LanguageModel | RecurrentLanguageModel):
        scores: Tensor = loaded.model(ids)
        return scores
    lengths = torch.tensor([ids.shape[1]], device=ids.device)
    words = [begin for begin in begins if begin < ids.shape[1]]
    extra = (torch.tensor([words], device=ids.device),) if isinstance(loaded.model, TextTagger) else ()
    return loaded.model(ids, lengths, *extra)  # type: ignore[no-any-return]


def last_self_attention(loaded: Any, ids: list[int], begins: tuple[int, ...] = ()) -> Tensor:
    """Return the weights of the last layer over the tokens of a text, the mean over its heads.

    Args:
        loaded: a loaded language model or tagger.
        ids: its tokens.
        begins: where the words begin, for a tagger.

    Returns:
        (S, S): row i is what token i attends to.

    Raises:
        ConfigError: the model has no attention.
    """
    expect_attention(loaded.model)
    layer = attention_names(loaded.model)[-1]
    device = device_of(loaded.model)
    with torch.no_grad(), record(loaded.model, layers=[layer]) as trace:
        read_ids(loaded, torch.tensor([ids], device=device), begins)
    weights = trace.weights(layer)[0].float().cpu()
    return weights.mean(0) if weights.ndim == 3 else weights


def read_scene(loaded: Any, ids: Sequence[int], text: str, begins: tuple[int, ...] = ()) -> Scene:
    """Run a loaded model of one text on tokens, and return what every layer attends to.

    Args:
        loaded: the model with its tokenizer.
        ids: the tokens.
        text: the text, for the title.
        begins: where the words begin, for a tagger.

    Returns:
        The scene of the sequence "text"; or of "source", for a text whose states are pooled by attention, where
        "target" is the label.

    Raises:
        DataError: there are no tokens.
        ConfigError: the model has no attention.
    """
    expect_attention(loaded.model)
    tokens = torch.tensor([list(expect_tokens(ids))], device=device_of(loaded.model))
    with torch.no_grad(), record(loaded.model) as trace:
        scores = read_ids(loaded, tokens, begins)
    pieces = loaded.tokenizer.pieces(ids)
    pooled = any(not call.self_attention for calls in trace.calls.values() for call in calls)
    name = "source" if pooled else "text"
    label = {"target": [loaded.labels[int(scores.argmax())]]} if pooled else {}
    scene = trace.scene(0, {name: pieces, **label}, title=title_of(text), notes={name: unknown_notes(pieces)})
    if isinstance(loaded.model, MaskedLanguageModel) and not loaded.model.config.masked_head:
        return scene  # its folder has no output layer: it gives states, and no answer
    return with_answers(scene, loaded.model, trace, lambda: _answer(loaded, tokens, pieces, begins))


def _answer(loaded: Any, tokens: Tensor, pieces: Sequence[str], begins: tuple[int, ...]) -> ModelAnswer:
    """Return what a loaded model of one text says: the next tokens, a label, tags, or the tokens themselves."""
    scores = read_ids(loaded, tokens, begins)[0]
    probabilities = scores.float().softmax(-1).reshape(-1, scores.shape[-1]).cpu()
    names = getattr(loaded, "labels", None)
    best = probabilities.argmax(-1).tolist()
    if names is None:

        def name(number: int) -> str:
            return str(loaded.tokenizer.pieces([number])[0])

        predicts_next = isinstance(loaded.model, LanguageModel | RecurrentLanguageModel)
        labels = [f"after {piece}" for piece in pieces] if predicts_next else pieces
        return ModelAnswer(name(best[-1]) if predicts_next else "", tuple(labels), probabilities, name)
    words = [pieces[at] for at in begins if at < len(pieces)] if len(best) > 1 else ["label"]
    return ModelAnswer(" ".join(names[at] for at in best), tuple(words), probabilities, names.__getitem__)


def expect_tokens(tokens: Sequence[T]) -> Sequence[T]:
    """Return the tokens of a text, of which there must be one.

    Raises:
        DataError: there is none.
    """
    if not tokens:
        raise DataError(setting("text"), "at least one token", "none", "Give a text for the model to read.")
    return tokens


def unknown_notes(pieces: Sequence[str]) -> list[str]:
    """Return a note for each token of a scene: that it is unknown, or none."""
    return ["unknown" if piece == "<unk>" else "" for piece in pieces]


def title_of(text: str) -> str:
    """Return a text as the title of its scene, on one line.

    Example:
        >>> title_of("one\\n two"), len(title_of("x" * 100))
        ('one two', 60)
    """
    line = " ".join(text.split())
    return line if len(line) <= _TITLE else line[: _TITLE - 1] + "…"
