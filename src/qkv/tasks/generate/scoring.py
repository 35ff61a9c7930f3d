"""How well a language model predicts a text."""

import torch

from qkv.data.batches import device_of, in_batches
from qkv.metrics.figure import Figure
from qkv.metrics.likelihood import bits_per_character, perplexity
from qkv.models.language_model import LanguageModel
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.tasks.corpora.text import TextInMemory
from qkv.tasks.notes import counted

TextModel = LanguageModel | RecurrentLanguageModel
_JUDGED_TOKENS = 8192


@torch.no_grad()
def judge(model: TextModel, text: TextInMemory) -> list[Figure]:
    """Measure how well a model predicts a text; used by both training and `qkv evaluate`.

    Every token but the first is predicted once, in adjacent windows of the model's context length, including the last,
    shorter one.

    Args:
        model: in evaluation mode.
        text: at least two tokens.

    Returns:
        Loss in nats per token, perplexity, bits per character.
    """
    context, device = model.config.context, device_of(model)
    count = len(text.ids) - 1
    complete = list(range(0, count - context + 1, context))
    batches = [text.take(starts, context) for starts in in_batches(complete, max(1, _JUDGED_TOKENS // context))]
    if remainder := count % context:
        batches.append(text.ids[None, -remainder - 1 :])
    total = 0.0
    for window in counted(batches):
        logits = model(window[:, :-1].to(device)).float()
        total += float(torch.nn.functional.cross_entropy(logits.mT, window[:, 1:].to(device), reduction="sum"))
    loss = Figure("loss", total / count, f"nats per token, context:{context}", higher_is_better=False)
    return [loss, perplexity(total, count), bits_per_character(total, text.characters)]
