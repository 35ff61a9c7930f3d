"""What a translator attends to, as a scene for the viewer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from qkv.data.batches import collate_sources, device_of
from qkv.data.open_vocabulary import pieces_open
from qkv.errors import setting
from qkv.recording.recorder import record
from qkv.tasks.length import expect_length
from qkv.tasks.rerunning import with_answers
from qkv.tasks.text_attention import expect_attention, expect_tokens, title_of, unknown_notes
from qkv.tasks.translate.alignment_reading import default_reading
from qkv.tasks.translate.decoding import Decoding, decode, shown_end
from qkv.view.scene import ModelAnswer, Scene
from qkv.view.tokens import sentence


def translated_scene(translator: Any, text: str, tokens: int | None = None) -> Scene:
    """Translate a text, and record what every layer attends to; arguments and errors as for `Translator.scene`."""
    tokenizer, model = translator.tokenizer, translator.model
    encoded = translator.encode(translator.symbols(text))
    ids = list(expect_tokens(encoded.ids[:tokens]))
    expect_length(setting("text"), len(ids), translator.longest, tokenizer)
    device = device_of(model)
    source, lengths = collate_sources([ids], tokenizer.pad, device)
    prefix, never = translator.beginning(encoded), tokenizer.never_written
    limit = translator.limit(lengths).clamp(min=len(prefix) + 1)
    bos, eos = tokenizer.bos, tokenizer.eos
    settings: dict[str, Any] = {"limit": limit, "never": never, "bos": bos, "eos": eos, "prefixes": [prefix]}
    hypothesis = decode([model], source, lengths, (), Decoding(), **settings)[0][0].ended_at(tokenizer.other_ends)
    target = torch.tensor([[tokenizer.bos, *hypothesis.ids]], device=device)
    expect_attention(model)
    with torch.no_grad(), record(model) as trace:
        model(source, lengths, target)
    read, size = pieces_open(ids, tokenizer.source, encoded.unknown), tokenizer.source.size
    written = [*pieces_open(hypothesis.ids, tokenizer, encoded.unknown), shown_end(hypothesis.finished)]
    order = -1 if translator.right_to_left[0] else 1
    origins = translator.origins(ids, hypothesis.ids[::order]) or ()
    copied = {index for index, origin in enumerate(origins[::order]) if origin is not None}
    notes = {
        "source": ["unknown" if number >= size or number == tokenizer.source.unk else "" for number in ids],
        "target": ["copied" if index in copied else mark for index, mark in enumerate(unknown_notes(written))],
    }
    scene = trace.scene(0, {"source": read, "target": written}, title=title_of(text), notes=notes)
    # A row is the step that writes a token: what is read after the step would be one row too low.
    reading = translator.reading if translator.reading.when == "at" else default_reading(model)
    opened = replace(scene, opening=(reading.layer, reading.head))

    def text_of(ids: Sequence[int]) -> str:
        return sentence(tuple(pieces_open(ids, tokenizer, encoded.unknown)))

    def translated() -> list[int]:
        """Translate greedily without a cache: a mask that is tried out counts positions from the first."""
        ids = [bos, *prefix]
        for _ in range(int(limit[0]) - len(prefix)):
            scores = model(source, lengths, torch.tensor([ids], device=device))[0, -1]
            scores[list(never)] = -torch.inf
            ids.append(int(scores.argmax()))
            if ids[-1] in (eos, *tokenizer.other_ends):
                return ids[1:-1]
        return ids[1:]

    def answer() -> ModelAnswer:
        scores = model(source, lengths, target)[0, : len(written)]  # the last step writes the end
        name = lambda number: eos_shown if number == eos else text_of([number])  # noqa: E731
        probabilities = scores.float().softmax(-1).cpu()
        return ModelAnswer(text_of(translated()), tuple(written), probabilities, name)

    eos_shown = shown_end(True)
    return with_answers(opened, model, trace, answer)
