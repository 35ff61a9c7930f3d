"""`qkv generate`: continue a prompt, streaming to standard output."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded
from qkv.cli.place import PICTURES, expect_place


@guarded
def generate(
    run: Annotated[Path, typer.Argument(help="Run folder, or one checkpoint in it.")],
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "\n",
    tokens: Annotated[int, typer.Option(help="Number of tokens to add.")] = 500,
    temperature: Annotated[
        float, typer.Option(help="Below 1 for more likely text; 0 takes the most likely token.")
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of sampling.")] = 0,
    long_prompt: Annotated[
        str, typer.Option(help="If the prompt exceeds the model's context: refuse, or window (read its end).")
    ] = "refuse",
    attention: Annotated[
        Path | None, typer.Option(help="Also draw what tokens attend to: FILE.html, FILE.svg or FILE.png.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Also draw what tokens attend to in the terminal, on standard error.")
    ] = False,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, ...")] = "cpu",
) -> None:
    """Continue a prompt; the text appears as it is generated.

    Example: qkv generate runs/plays --prompt "KING:" --temperature 0.8
    """
    from qkv.tasks.generator import Generator, check_long_prompt
    from qkv.tasks.streams import write_text

    expect_place("--attention", attention, PICTURES)
    reading = check_long_prompt(long_prompt)
    generator = Generator.load(run, device)
    pieces = generator.stream(
        prompt,
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        long_prompt=reading,
    )
    write_text([prompt.removeprefix("\n")])
    written: list[str] = []
    write_text(_kept(pieces, written))
    write_text(["\n"])
    if show or attention is not None:
        from qkv.tasks.drawing import draw_text

        draw_text(*generator.attention("".join([prompt, *written])), attention, terminal=show)


def _kept(pieces: Iterable[str], written: list[str]) -> Iterator[str]:
    for piece in pieces:
        written.append(piece)
        yield piece
