"""Training speed: steps of qkv's models against models of PyTorch and Hugging Face of the same size.

Contenders alternate in one process, on the same batches, in float32, each with forward, loss, backward, clipping and
AdamW; a ratio is the median of paired turns, with its quartiles. The floor is the matrix products of qkv's step alone,
forward and backward, each by the library that qkv calls for it; attention's own products are not among them.

    python -m benchmarks.train                  wall time, on an idle machine
    python -m benchmarks.train --processor      processor time on one thread, on a shared machine

Results go to benchmarks/results/train.json.
"""

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, final

import torch
from benchmarks._gpt import LayersGPT, NanoGPT
from benchmarks.engine.timing import Patience, Run, by_turns, ratio
from benchmarks.kept import keep
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.linalg.matmul import product
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.translator import TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.translator import TransformerTranslator
from qkv.training.loss import output_loss
from qkv.training.optimizer import build_optimizer, clip_gradient
from qkv.training_settings import Settings


class Sizes(TypedDict):
    """Sizes that all models have."""

    layers: int
    heads: int
    width: int


RESULTS = Path(__file__).parent / "results" / "train.json"
SIZE, CONTEXT, ROWS = 65, 64, 12
WORDS, SOURCE, TARGET, PAIRS = 8000, 16, 16, 64
GPT: Sizes = {"layers": 4, "heads": 4, "width": 128}
OURS, FLOOR = "qkv", "floor"
ASKED = {"gpt": {"torch.nn layers": 1.5}, "translator": {"torch.nn.Transformer": 1.3, "Hugging Face Marian": 1.3}}
Loss = Callable[[nn.Module], Tensor]


def update(model: nn.Module, loss: Loss, fused: bool) -> Run:
    """Return a function that runs one training step. Rivals use the optimizer of their own examples."""
    parameters = list(model.parameters())
    optimizer = (
        build_optimizer(model, Settings())
        if fused
        else torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    )

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model).backward()
        if fused:
            clip_gradient(parameters, 1.0)
        else:
            nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return run


_PRODUCTS = {
    torch.ops.aten.mm.default: 0,
    torch.ops.aten.addmm.default: 1,
    torch.ops.aten.addmm_.default: 1,
    torch.ops.aten.addmm.out: 1,
}
"""PyTorch's products of two matrices, and which argument is the left one; the right one follows."""


@final
class _Operands(TorchDispatchMode):
    """Records the operands of every matrix product that runs within, as random tensors of the same layout."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        if function in _PRODUCTS:
            left, right = given[_PRODUCTS[function] :][:2]
            self._record(left, right)
        elif function is torch.ops.mkldnn._linear_pointwise.default:
            self._record(given[0], given[1].mT)
        return function(*given, **(options or {}))

    def _record(self, *operands: Tensor) -> None:
        left, right = map(torch.randn_like, operands)
        self.found.append((left, right))


def floor(step: Run) -> Run:
    """Return a function that computes the matrix products of a training step, and nothing else."""
    step()
    with _Operands() as operands:
        step()

    def run() -> None:
        with torch.no_grad():
            for left, right in operands.found:
                product(left, right)

    return run


def gpt() -> dict[str, Run]:
    """nanoGPT's CPU size: 4 layers, width 128, context 64, batches of 12."""
    window = torch.randint(SIZE, (ROWS, CONTEXT + 1))

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())

    config = DecoderConfig(
        size=SIZE,
        **GPT,
        positions="learned",
        context=CONTEXT,
        feed_forward=512,
        activation="gelu",
        bias=False,
        dropout=0.0,
    )
    ours = update(LanguageModel(config), loss, fused=True)
    return {
        OURS: ours,
        FLOOR: floor(ours),
        "nanoGPT's modules": update(NanoGPT(SIZE, context=CONTEXT, **GPT), loss, fused=False),
        "torch.nn layers": update(LayersGPT(SIZE, context=CONTEXT, **GPT), loss, fused=False),
    }


class TorchTranslator(nn.Module):
    """`torch.nn.Transformer` with embeddings, learned positions and an output layer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.size, config.width)
        self.places = nn.Embedding(256, config.width)
        self.transformer = nn.Transformer(
            config.width,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.feed_forward,
            config.dropout,
            batch_first=True,
            norm_first=True,
        )
        self.output = nn.Linear(config.width, config.size)
        self.output.weight = self.embed.weight

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        hidden = torch.arange(source.shape[1]) >= lengths[:, None]
        x, y = (self.embed(ids) + self.places(torch.arange(ids.shape[1])) for ids in (source, target))
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.transformer(
            x, y, tgt_mask=mask, src_key_padding_mask=hidden, memory_key_padding_mask=hidden, tgt_is_causal=True
        )
        out: Tensor = self.output(states)
        return out


def marian(config: TransformerConfig) -> nn.Module | None:
    """Hugging Face's Marian of the same size, if transformers is installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=config.size,
            d_model=config.width,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.feed_forward,
            decoder_ffn_dim=config.feed_forward,
            dropout=config.dropout,
            pad_token_id=0,
            eos_token_id=2,
            decoder_start_token_id=0,
            max_position_embeddings=256,
        )
    )


def translator() -> dict[str, Run]:
    """Width 256, feed-forward 1024, 4 heads, 3 + 3 layers, vocabulary 8,000, batches of 64 sentences of 10 to 16."""
    config = TransformerConfig(size=WORDS, dropout=0.1)
    lengths = torch.randint(10, SOURCE + 1, (PAIRS,))
    source, target = torch.randint(4, WORDS, (PAIRS, SOURCE)), torch.randint(4, WORDS, (PAIRS, TARGET + 1))
    source = torch.where(torch.arange(SOURCE) < lengths[:, None], source, 0)

    def loss(model: nn.Module) -> Tensor:
        logits = model(source, lengths, target[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)

    def their_loss(model: nn.Module) -> Tensor:
        logits = model(source, attention_mask=(source != 0).long(), decoder_input_ids=target[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)

    def our_loss(model: nn.Module) -> Tensor:
        assert isinstance(model, TransformerTranslator)
        states, output = model.states(source, lengths, target[:, :-1]), model.output
        total, count = output_loss(states, output.weight, output.bias, target[:, 1:], 0, smoothing=0.1)
        return total / count

    ours = update(TransformerTranslator(config), our_loss, fused=True)
    runs = {
        OURS: ours,
        FLOOR: floor(ours),
        "torch.nn.Transformer": update(TorchTranslator(config), loss, fused=False),
    }
    other = marian(config)
    return runs if other is None else runs | {"Hugging Face Marian": update(other, their_loss, fused=False)}


def measure(runs: dict[str, Run], tokens: int, clock: Callable[[], float], seconds: float) -> dict[str, Any]:
    """Return milliseconds, tokens per second, and each contender's time relative to qkv."""
    times = by_turns(runs, dict.fromkeys(runs, Patience(seconds, 5, 200)), clock)
    report: dict[str, Any] = {}
    for name, own in times.items():
        middle = statistics.median(own)
        report[name] = {"ms": round(middle, 2), "tokens_per_second": round(1e3 * tokens / middle)}
        if name != OURS:
            compared = ratio(own, times[OURS])
            quartiles = [round(compared.low, 2), round(compared.high, 2)]
            report[name] |= {"times_as_long_as_qkv": round(compared.middle, 2), "quartiles": quartiles}
    return report


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processor", action="store_true", help="processor time on one thread")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds per contender")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1 if given.processor else min(2, os.cpu_count() or 1))
    clock = time.process_time if given.processor else time.perf_counter
    report: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads(), "dtype": "float32"}
    report |= {"clock": "processor" if given.processor else "wall", "load": round(os.getloadavg()[0], 1)}
    for what, runs, tokens in (("gpt", gpt(), ROWS * CONTEXT), ("translator", translator(), PAIRS * TARGET)):
        report[what] = measure(runs, tokens, clock, given.seconds)
        for name, row in report[what].items():
            asked = ASKED[what].get(name)
            compared = f", {row['times_as_long_as_qkv']} {row['quartiles']} times as long" if name != OURS else ""
            print(
                f"{what:11} {name:22} {row['ms']:8.1f} ms, {row['tokens_per_second']:8,} tokens/s{compared}"
                + (f" (asked: {asked})" if asked else "")
            )
    keep(RESULTS, report)


if __name__ == "__main__":
    main()
