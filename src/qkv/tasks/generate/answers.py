"""What `qkv generate` writes: a prompt and its continuation, piece by piece."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qkv.tasks.answering import Answers, Lines
from qkv.tasks.drawing import Drawing
from qkv.tasks.generate.predict import Generator
from qkv.tasks.generate.settings import GenerateAnswers
from qkv.tasks.notes import as_json, working
from qkv.tasks.streams import format_json
from qkv.view.alignment import Alignment


def open_answers(runs: Sequence[Path], settings: GenerateAnswers) -> Answers:
    """Load a language model, see `qkv.tasks.task.OpenAnswers`. It reads its prompt, not lines."""
    generator = Generator.load(runs[0], settings.device)
    drawing = Drawing(settings.attention, terminal=settings.show)
    prompt, seed = settings.prompt, settings.seed

    def generated(_: Iterable[Lines], __: Path | None = None) -> Iterator[str]:
        pieces = _continuation(generator, settings)
        written: list[str] = []
        if as_json():
            with working("generating"):
                written += pieces
            yield from format_json([{"prompt": prompt, "text": "".join(written), "seed": seed}])
        else:
            yield prompt.removeprefix("\n")
            for piece in pieces:
                written.append(piece)
                yield piece
            yield "\n"
        if drawing.active:
            read, weights = generator.attention("".join([prompt, *written]))
            drawing.add([Alignment(read, read, weights)])

    return Answers(generated, drawing)


def _continuation(generator: Generator, settings: GenerateAnswers) -> Iterator[str]:
    how: dict[str, Any] = {
        name: getattr(settings, name)
        for name in ("tokens", "temperature", "top_k", "top_p", "seed", "no_repeat_ngram", "long_prompt")
    }
    if settings.beam == 1:
        return generator.stream(settings.prompt, **how)
    with working("searching"):
        (text,) = generator.generate([settings.prompt], **how, beam=settings.beam)
    return iter([text.removeprefix(settings.prompt)])
