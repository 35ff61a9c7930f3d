"""Decoding against other decoders with the same weights: CTranslate2 and Hugging Face's Marian, greedy and beam 5.

Two threads, float32: a Transformer of width 256, feed-forward 1024, 4 heads, 3 + 3 layers, vocabulary 8,000, with norms
after each sublayer as in Marian; 64 sources of 16 tokens, 20 steps each (the end token is made impossible, so that all
do the same work). It counts how many of the ids agree. Contenders alternate, so that changes of the machine's speed
affect all of them; a ratio is the median over rounds of the ratio within a round, its spread the quartiles. Each
contender is a separate process, as in real use: in a shared process, CTranslate2 would use the OpenMP library that
ships with PyTorch, whose threads would then exceed the cores and sleep at every product of later contenders. A pause
before each turn lets the threads of the previous contender stop waiting for work. The floor is the matrix products
alone. Every contender packs its weights once for all rounds, as a translator does for all batches of a call, and
CTranslate2 when it loads a model. CTranslate2 also runs with one thread, which can be faster for greedy decoding.

    python -m benchmarks.decode            # needs the extras export and bench
    python -m benchmarks.decode --busy     # one thread, processor time: for a shared machine

Results go to benchmarks/results/decode.json, decode_busy.json.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from benchmarks.kept import keep

from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.hub.ctranslate import to_ctranslate2
from qkv.linalg.matmul import linear
from qkv.linalg.packed import PackedWeight
from qkv.linalg.session import DecodingSession
from qkv.models.configs.translator import TransformerConfig
from qkv.models.translator import TransformerTranslator
from qkv.nn.positions import sinusoidal

RESULTS = Path(__file__).parent / "results"
SIZE, BATCH, SOURCE, STEPS, BEAM = 8000, 64, 16, 20, 5
PAD, BOS, EOS, UNK = 0, 1, 2, 3
NEVER = -1e4
PAUSE = 0.1
"""Seconds."""
NAMES = ("qkv", "CTranslate2", "CTranslate2, one thread", "Marian", "floor")
ASKED = {"greedy": {"CTranslate2": 1.0, "Marian": 2.0}, "beam 5": {"CTranslate2": 0.8, "Marian": 2.5}}


def model() -> TransformerTranslator:
    torch.manual_seed(0)
    made = TransformerTranslator(TransformerConfig(size=SIZE, norm_first=False)).eval()
    with torch.no_grad():
        made.output.bias[[PAD, BOS, EOS]] = NEVER
    return made


def ours(made: TransformerTranslator, source: torch.Tensor, width: int) -> Callable[[], list[list[int]]]:
    lengths = torch.full((BATCH,), SOURCE)
    given: dict[str, Any] = {"bos": BOS, "eos": EOS, "limit": STEPS, "session": DecodingSession()}
    if width == 1:
        return lambda: [list(found.ids) for found in greedy(made, source, lengths, **given)]
    search = Beam(width)
    return lambda: [list(found.ids) for found, *_ in beam(made, source, lengths, search=search, **given)]


def ctranslate2(
    made: TransformerTranslator, source: torch.Tensor, folder: str, width: int, threads: int
) -> Callable[[], Any]:
    import ctranslate2

    pieces = ["<pad>", "<bos>", "<eos>", "<unk>", *(f"t{i}" for i in range(4, SIZE))]
    to_ctranslate2(made, pieces, Path(folder), bos=BOS, eos=EOS, unk=UNK, positions=512)
    options = {"device": "cpu", "inter_threads": 1, "intra_threads": threads}
    translator = ctranslate2.Translator(folder, compute_type="float32", **options)
    ids = {piece: place for place, piece in enumerate(pieces)}
    tokens = [[pieces[i] for i in row] for row in source.tolist()]

    def run() -> list[list[int]]:
        found = translator.translate_batch(tokens, beam_size=width, max_decoding_length=STEPS, max_batch_size=BATCH)
        return [[ids[token] for token in one.hypotheses[0]] for one in found]

    return run


def marian(made: TransformerTranslator, source: torch.Tensor, width: int) -> Callable[[], list[list[int]]]:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=SIZE,
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        forced_eos_token_id=None,
        decoder_start_token_id=BOS,
        max_position_embeddings=512,
    )
    theirs = MarianMTModel(config).eval()
    theirs.load_state_dict(_as_marian(made, theirs))
    mask = torch.ones_like(source)
    options = {"max_new_tokens": STEPS, "num_beams": width, "do_sample": False}

    @torch.no_grad()
    def run() -> list[list[int]]:
        found: list[list[int]] = theirs.generate(source, attention_mask=mask, **options)[:, 1:].tolist()
        return found

    return run


def _as_marian(made: TransformerTranslator, theirs: Any) -> dict[str, torch.Tensor]:
    """Marian's names for our weights."""
    state: dict[str, torch.Tensor] = theirs.state_dict()
    for name in ("model.shared.weight", "lm_head.weight", *(f"model.{s}.embed_tokens.weight" for s in SIDES)):
        state[name] = made.embed.weight
    state["final_logits_bias"] = made.output.bias[None]
    for side in SIDES:
        state[f"model.{side}.embed_positions.weight"] = sinusoidal(512, 256)
        for place, block in enumerate(getattr(made, side)):
            own = f"model.{side}.layers.{place}"
            parts = [("self_attn", block.self_attention, block.around_self)]
            if side == "decoder":
                parts.append(("encoder_attn", block.cross_attention, block.around_cross))
            for name, attention, around in parts:
                for index, kind in enumerate("qkv"):
                    weight, bias = attention.projections.part(index)
                    state |= {f"{own}.{name}.{kind}_proj.weight": weight, f"{own}.{name}.{kind}_proj.bias": bias}
                state |= _named(f"{own}.{name}.out_proj", attention.output)
                state |= _named(f"{own}.{name}_layer_norm", around.norm)
            state |= _named(f"{own}.fc1", block.feed_forward.expand) | _named(f"{own}.fc2", block.feed_forward.contract)
            state |= _named(f"{own}.final_layer_norm", block.around_feed.norm)
    return state


SIDES = ("encoder", "decoder")


def _named(name: str, layer: Any) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}


def floor(made: TransformerTranslator, width: int) -> Callable[[], list[list[int]]]:
    """Return a function that computes only the matrix products of a decoding, in the fastest way available here."""
    tokens, rows = torch.randn(BATCH * SOURCE, 256), torch.randn(BATCH * width, 256)
    encoder = [*_products(made.encoder), *(_memory(block) for block in made.decoder)]
    decoder = [*_products(made.decoder), (made.output.weight, made.output.bias)]
    packed = [(PackedWeight(weight.detach()), weight.shape[1], bias) for weight, bias in decoder]
    wide = {1024: (torch.randn(BATCH * SOURCE, 1024), torch.randn(BATCH * width, 1024))}

    @torch.no_grad()
    def run() -> list[list[int]]:
        for weight, bias in encoder:
            linear(wide[1024][0] if weight.shape[1] == 1024 else tokens, weight, bias)
        for _ in range(STEPS):
            for panels, terms, bias in packed:
                panels.times(wide[1024][1] if terms == 1024 else rows, bias)
        return []

    return run


def _products(blocks: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    layers = []
    for block in blocks:
        layers += [block.self_attention.projections.layers[0], block.self_attention.output]
        if block.cross_attention is not None:
            layers.append(block.cross_attention.output)
        layers += [block.feed_forward.expand, block.feed_forward.contract]
    pairs = [(layer.weight, layer.bias) for layer in layers]
    return pairs + [block.cross_attention.projections.part(0) for block in blocks if block.cross_attention]


def _memory(block: Any) -> tuple[torch.Tensor, torch.Tensor]:
    layer = block.cross_attention.projections.layers[0]
    return layer.weight[256:], layer.bias[256:]


def contender(name: str, width: int, threads: int, folder: str) -> Callable[[], Any]:
    """Return what a contender does in a turn, given the shared weights and sources."""
    torch.set_num_threads(threads)
    made = model()
    source = torch.randint(4, SIZE, (BATCH, SOURCE))
    match name:
        case "qkv":
            return ours(made, source, width)
        case "CTranslate2":
            return ctranslate2(made, source, folder, width, threads)
        case "CTranslate2, one thread":
            return ctranslate2(made, source, folder, width, 1)
        case "Marian":
            return marian(made, source, width)
        case _:
            return floor(made, width)


def serve(turns: Connection, busy: bool, name: str, width: int, threads: int) -> None:
    """A contender's process: for each requested turn, its seconds and the ids."""
    clock = time.process_time if busy else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        call = contender(name, width, threads, folder)
        call()
        turns.send(None)
        while turns.recv():
            start = clock()
            ids = call()
            turns.send((clock() - start, ids))


def measure(width: int, rounds: int, busy: bool) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return the seconds of each contender in each round, and its ids."""
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name in NAMES:
        pipes[name], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=serve, args=(theirs, busy, name, width, 1 if busy else 2), daemon=True))
        processes[-1].start()
        theirs.close()  # so that a contender that ends is an EOFError here, not a wait for ever
        pipes[name].recv()
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    ids: dict[str, Any] = {}
    for turn in range(rounds + 1):
        for name, pipe in pipes.items():
            time.sleep(PAUSE)
            pipe.send(True)
            seconds, ids[name] = pipe.recv()
            if turn:  # the first round is a warm-up
                times[name].append(seconds)
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(False)
        process.join()
    return times, ids


def summary(times: dict[str, list[float]], asked: dict[str, float]) -> dict[str, Any]:
    """Return tokens per second, and qkv's speedup over each contender."""
    rows: dict[str, Any] = {}
    for name, own in times.items():
        ratios = [theirs / mine for theirs, mine in zip(own, times["qkv"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows[name] = {
            "tokens_per_second": round(BATCH * STEPS / statistics.median(own)),
            "qkv_is_times_as_fast": round(middle, 2),
            "quartiles": [round(low, 2), round(high, 2)],
            "asked": asked.get(name),
        }
    return rows


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    report: dict[str, Any] = {"torch": torch.__version__, "threads": 1 if given.busy else 2, "dtype": "float32"}
    report |= {"rounds": given.rounds, "clock": "processor time" if given.busy else "wall clock"}
    for what, width in (("greedy", 1), ("beam 5", BEAM)):
        times, ids = measure(width, given.rounds, given.busy)
        same = {name: sum(map(list.__eq__, ids["qkv"], ids[name])) for name in ("CTranslate2", "Marian")}
        report[what] = summary(times, ASKED[what]) | {"same_ids_of_64": same}
        for name, row in report[what].items():
            print(f"{what:8} {name:24} {row}")
    name = "decode_busy.json" if given.busy else "decode.json"
    keep(RESULTS / name, report)


if __name__ == "__main__":
    main()
