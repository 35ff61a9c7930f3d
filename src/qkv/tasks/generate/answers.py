"""What `qkv generate` writes: a prompt and its continuation, piece by piece."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.settings import options_of
from qkv.tasks.answering import Answers, Lines
from qkv.tasks.drawing import Drawing
from qkv.tasks.generate.predict import Generator
from qkv.tasks.generate.settings import GenerateAnswers, GenerateRequest
from qkv.tasks.notes import as_json, working
from qkv.tasks.runs import load_model
from qkv.tasks.streams import format_json
from qkv.view.alignment import Alignment


def open_answers(runs: Sequence[Path], settings: GenerateAnswers) -> Answers:
    """Load a language model, see `qkv.tasks.task.OpenAnswers`. It reads its prompt, not lines."""
    generator: Generator = load_model(runs[0], settings.device, "generate")
    drawing = Drawing(settings.attention, terminal=settings.show)
    prompt, seed = settings.prompt, settings.seed

    def generated(_: Iterable[Lines], __: Path | None = None) -> Iterator[str]:
        pieces = _continuation(generator, prompt, settings)
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
            drawing.add([Alignment(read, read, weights, ("earlier token", "token"))])

    def requested(prompts: Sequence[str], request: GenerateRequest) -> list[Mapping[str, object]]:
        texts = generator.generate(prompts, **_how(request))
        return [
            {"prompt": prompt, "text": text.removeprefix(prompt), "seed": request.seed}
            for prompt, text in zip(prompts, texts, strict=True)
        ]

    def streamed(prompt: str, request: GenerateRequest) -> Iterator[str]:
        return _continuation(generator, prompt, request)

    return Answers(generated, drawing, requested=requested, streamed=streamed)


def _how(settings: GenerateRequest) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in options_of(GenerateRequest)}


def _continuation(generator: Generator, prompt: str, settings: GenerateRequest) -> Iterator[str]:
    how = _how(settings)
    if settings.beam == 1:
        del how["beam"]
        return generator.stream(prompt, **how)
    with working("searching"):
        (text,) = generator.generate([prompt], **how)
    return iter([text.removeprefix(prompt)])
