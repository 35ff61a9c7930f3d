"""`qkv generate`: go on with a prompt, streaming to standard output."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def generate(
    run: Annotated[Path, typer.Argument(help="The folder that training wrote, or one checkpoint in it.")],
    prompt: Annotated[str, typer.Option(help="The text to go on with.")] = "\n",
    tokens: Annotated[int, typer.Option(help="How many tokens to add.")] = 500,
    temperature: Annotated[float, typer.Option(help="Below 1 for likelier text; 0 for the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest tokens that have this probability together.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    long_prompt: Annotated[
        str, typer.Option(help="A prompt longer than the model's context: refuse, or window (read its end).")
    ] = "refuse",
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")] = "cpu",
) -> None:
    """Go on with a prompt; the text appears as it is made.

    Example: qkv generate runs/plays --prompt "KING:" --temperature 0.8
    """
    from qkv.tasks.generator import Generator, check_long_prompt
    from qkv.tasks.streams import write_text

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
    write_text(pieces)
    write_text(["\n"])
