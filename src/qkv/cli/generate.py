"""`qkv generate`: continue a prompt, streaming to standard output."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, get_args

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.paths import PICTURES, expect_output_file
from qkv.errors import expect_name, setting
from qkv.tasks.generate.settings import TEMPERATURE, TOKENS


@guarded
def generate(
    run: f.Run,
    prompt: Annotated[str, typer.Option(help="The text to continue.", show_default="a line end")] = "\n",
    tokens: Annotated[int, typer.Option(help="Number of tokens to add.")] = TOKENS,
    temperature: Annotated[
        float,
        typer.Option(
            help="Below 1 for likelier text, 1 for the model's own distribution; 0 takes the likeliest token."
        ),
    ] = TEMPERATURE,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of sampling.")] = 0,
    beam: Annotated[int, typer.Option(help="Beam width: more than 1 takes the likeliest text and draws nothing.")] = 1,
    long_prompt: Annotated[
        str, typer.Option(help="If the prompt exceeds the model's context: refuse, or window (read its end).")
    ] = "refuse",
    attention: Annotated[Path | None, f.picture_option("what tokens attend to")] = None,
    show: Annotated[bool, f.terminal_option("what tokens attend to")] = False,
    device: f.OnDevice = "cpu",
) -> None:
    """Continue a prompt; the text appears as it is generated.

    Example: qkv generate runs/plays --prompt "KING:" --tokens 500
    """
    from qkv.tasks.generate.predict import Generator, LongPrompt
    from qkv.tasks.notes import as_json, working
    from qkv.tasks.streams import write_json, write_text

    expect_output_file("attention", attention, PICTURES)
    reading: LongPrompt = expect_name(setting("long_prompt"), long_prompt, get_args(LongPrompt))
    generator = Generator.load(run, device)
    sampling = {"tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    if beam == 1:
        pieces = generator.stream(prompt, **sampling, long_prompt=reading)  # type: ignore[arg-type]
    else:
        with working("searching"):
            (text,) = generator.generate([prompt], **sampling, beam=beam, long_prompt=reading)  # type: ignore[arg-type]
        pieces = iter([text.removeprefix(prompt)])
    written: list[str] = []
    if as_json():
        with working("generating"):
            written += pieces
        write_json([{"prompt": prompt, "text": "".join(written), "seed": seed}])
    else:
        write_text([prompt.removeprefix("\n")])
        write_text(_collecting(pieces, written))
        write_text(["\n"])
    if show or attention is not None:
        from qkv.tasks.drawing import Drawing
        from qkv.view.alignment import Alignment

        read, weights = generator.attention("".join([prompt, *written]))
        drawing = Drawing(attention, terminal=show)
        drawing.add([Alignment(read, read, weights)])
        drawing.finish()


def _collecting(pieces: Iterable[str], written: list[str]) -> Iterator[str]:
    for piece in pieces:
        written.append(piece)
        yield piece
