"""Every kind of file that a user can pass, with its reader: what is corrupted, and the expected outcome."""

import base64
import gzip
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import safetensors
import safetensors.torch
import torch
from tests.checkpoint.parts import same, small
from tests.fuzz.models import TEXT, families
from tests.fuzz.mutations import spoil_bytes, spoil_plain
from tests.training.parts import CONFIG, SETTINGS, fresh, run_training

from qkv.checkpoint import manifest as manifests
from qkv.checkpoint.contents import Contents, pack_contents
from qkv.checkpoint.folder import load as load_checkpoint
from qkv.checkpoint.folder import save
from qkv.checkpoint.rotation import locate
from qkv.checkpoint.run import open_run
from qkv.checkpoint.tensors import unpack
from qkv.data.corpus import read_lines, read_pairs, read_tsv
from qkv.data.labeled import read_labeled
from qkv.data.pointing import parse_pairs
from qkv.data.tagged import read_tagged
from qkv.data.text import read_text
from qkv.data.tokenizer import Tokenizer
from qkv.hub.families.load import read_folder
from qkv.hub.families.save import save as save_for_others
from qkv.hub.folder import Folder
from qkv.masks.patterns import Causal, Lengths
from qkv.metrics.alignment import parse_alignments
from qkv.nn.multihead import MultiHeadAttention
from qkv.normalizers.dense import Softmax
from qkv.recording.recorder import record
from qkv.recording.trace import KEY
from qkv.recording.trace_reader import read as read_trace
from qkv.settings import read_toml, to_toml
from qkv.tasks.classify.recipe import RECIPE as CLASSIFY
from qkv.tasks.generate import recipe as language_training
from qkv.tasks.load import load
from qkv.tasks.point import recipe as point_training
from qkv.tasks.recipe import AnyRecipe
from qkv.tasks.regress import data as regress_data
from qkv.tasks.regress import recipe as regression
from qkv.tasks.regress.model import fit
from qkv.tasks.regress.settings import RegressFiles, RegressModel
from qkv.tasks.runs import open_published
from qkv.tasks.tag.recipe import RECIPE as TAG
from qkv.tasks.translate import recipe as training
from qkv.training.journal import Journal, read_journal
from qkv.training.trainer import Trainer

FAMILIES = Path(__file__).parents[1] / "hub" / "families"
PUBLISHED = ("config.json", "model.safetensors", "tokenizer.json", "source.spm", "target.spm", "vocab.json")
BARE: tuple[AnyRecipe, ...] = (point_training.RECIPE, regression.RECIPE)
Attempt = Callable[[Random], object]
Reader = Callable[[Path], object]


@dataclass(frozen=True)
class Target:
    """A kind of file.

    Args:
        name: for messages.
        make: given an empty folder, writes a valid file and returns a function that corrupts and reads it once. That
            function may raise a `QkvError` and nothing else.
        share: its share of the attempts, relative to the others.
    """

    name: str
    make: Callable[[Path], Attempt]
    share: int = 4


class SilentError(AssertionError):
    """Something corrupted was accepted."""


def one_file(name: str, sound: Sequence[bytes], reader: Reader, share: int = 4) -> Target:
    """A file whose bytes are corrupted; compressed ones before or after compression."""

    def make(folder: Path) -> Attempt:
        path = folder / name
        packed = name.endswith(".gz")
        for data in sound:  # imports at first use do not count, and those of a rare success come late
            path.write_bytes(gzip.compress(data, 1) if packed else data)
            reader(path)

        def attempt(random: Random) -> object:
            data = random.choice(sound)
            if packed and random.random() < 0.5:
                path.write_bytes(gzip.compress(spoil_bytes(data, random), 1))
            else:
                path.write_bytes(spoil_bytes(gzip.compress(data, 1) if packed else data, random))
            return reader(path)

        return attempt

    return Target(name, make, share)


def plain_file(name: str, sound: Sequence[Any], reader: Reader, share: int = 4) -> Target:
    """A JSON file whose structure is corrupted."""

    def make(folder: Path) -> Attempt:
        path = folder / name

        def attempt(random: Random) -> object:
            path.write_text(json.dumps(spoil_plain(random.choice(sound), random)), encoding="utf-8")
            return reader(path)

        return attempt

    return Target(f"structure of {name}", make, share)


def altered_checkpoint(folder: Path) -> Attempt:
    """A checkpoint file changed, cut, removed, or replaced by a link, pipe or folder: always detected."""
    sound, spoilt = folder / "sound", folder / "spoilt"
    contents = small(1)
    save(sound, contents)
    secret = _secret(folder)

    def attempt(random: Random) -> object:
        shutil.rmtree(spoilt, ignore_errors=True)
        shutil.copytree(sound, spoilt)
        path = spoilt / random.choice(sorted(os.listdir(spoilt)))
        data = path.read_bytes()
        _replace(path, data, secret, random)
        found = load_checkpoint(spoilt)
        if not same(found, contents) or path.is_symlink() or path.read_bytes() != data:
            raise SilentError(f"{path.name} was altered")
        return found

    return attempt


def _replace(path: Path, data: bytes, secret: Path, random: Random) -> None:
    path.unlink()
    match random.randrange(12):
        case 0:
            return
        case 1:
            path.symlink_to(random.choice((secret / path.name, Path("../../outside") / path.name)))
        case 2:
            os.mkfifo(path)
        case 3:
            path.mkdir()
        case _:
            path.write_bytes(spoil_bytes(data, random))


def _secret(folder: Path) -> Path:
    """A valid checkpoint next to the folder that must not be opened."""
    secret = folder.parent / "outside"
    if not secret.exists():
        save(secret, small(1))
    return secret


def forged_checkpoint(contents: Contents) -> Callable[[Path], Attempt]:
    """A checkpoint with wrong config, tokenizer, metrics, tensors or file list, but valid checksums."""
    files, manifest = pack_contents(contents)

    def make(folder: Path) -> Attempt:
        _secret(folder)

        def attempt(random: Random) -> object:
            home = folder / "forged"
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            forged = dict(files)
            name = random.choice([*files, manifests.NAME])
            if name.endswith(".json") and name != manifests.NAME and random.random() < 0.8:
                forged[name] = json.dumps(spoil_plain(json.loads(files[name]), random)).encode()
            elif name != manifests.NAME:
                forged[name] = spoil_bytes(files[name], random)
            _write(home, forged, manifest.tied, random if name == manifests.NAME else None)
            return load(home)

        return attempt

    return make


def _write(home: Path, files: dict[str, bytes], tied: Any, random: Random | None) -> None:
    for name, data in files.items():
        (home / name).write_bytes(data)
    listed = manifests.describe(files, tied)
    if random is None:
        (home / manifests.NAME).write_bytes(listed.to_bytes())
        return
    lie = spoil_plain(json.loads(listed.to_bytes()), random)
    text = json.dumps(lie, sort_keys=True, indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    (home / manifests.NAME).write_bytes(text)


def forged_trainer(folder: Path) -> Attempt:
    """A run to resume, with wrong trainer state."""
    run = folder / "run"
    outcome = run_training(run)
    files = {path.name: path.read_bytes() for path in outcome.checkpoint.iterdir() if path.name != manifests.NAME}
    tied = manifests.parse((outcome.checkpoint / manifests.NAME).read_bytes(), "manifest").tied

    def attempt(random: Random) -> object:
        forged = dict(files)
        name = random.choice((manifests.TRAINER_NUMBERS, manifests.TRAINER_TENSORS))
        if name == manifests.TRAINER_NUMBERS:
            forged[name] = json.dumps(spoil_plain(json.loads(files[name]), random)).encode()
        else:
            forged[name] = _spoil_tensors(files[name], random)
        shutil.rmtree(outcome.checkpoint)
        outcome.checkpoint.mkdir()
        _write(outcome.checkpoint, forged, tied, None)
        task = fresh()
        trainer = Trainer(task, task.model, SETTINGS, CONFIG)
        trainer.begin(run, lambda text: None)
        return trainer

    return attempt


def _spoil_tensors(data: bytes, random: Random) -> bytes:
    tensors = safetensors.torch.load(data)
    name = random.choice(sorted(tensors))
    tensor = tensors.pop(name)
    match random.randrange(6):
        case 0:
            return spoil_bytes(data, random)
        case 1:
            tensors[name[: random.randrange(1, len(name))]] = tensor
        case 2:
            tensors[name] = tensor.flatten()[: random.randrange(tensor.numel() + 1)]
        case 3:
            tensors[name] = tensor.to(random.choice((torch.float64, torch.int8, torch.bool, torch.int64)))
        case 4:
            tensors[name] = torch.full_like(tensor, random.choice((0, 1, 127)))
        case _:
            tensors[name] = tensor[None]
    return safetensors.torch.save(tensors)


def run_folder(folder: Path) -> Attempt:
    """`run.json` and `best` of a run folder."""
    run = folder / "run"
    run_training(run)
    sound = {name: (run / name).read_bytes() for name in ("run.json", "best")}

    def attempt(random: Random) -> object:
        for name, data in sound.items():
            (run / name).unlink(missing_ok=True)
            spoilt = json.dumps(spoil_plain(json.loads(data), random)).encode()
            (run / name).write_bytes(random.choice((data, spoilt, spoil_bytes(data, random))))
        locate(run, say=lambda text: None)
        with open_run(run, CONFIG):
            return None

    return attempt


def read_settings(path: Path) -> object:
    """A TOML file, as settings of every task in turn; the last error stands for all."""
    tables = read_toml(path)
    for recipe in (training.RECIPE, language_training.RECIPE, CLASSIFY, TAG, *BARE):
        recipe.load_settings(tables)
    return tables


def settings_file(name: str, loader: Callable[[Any], object], text: str) -> Target:
    return one_file(f"{name}.toml", [text.encode()], lambda path: loader(read_toml(path)), 2)


def use_tokenizer(path: Path) -> object:
    return use(Tokenizer.from_json(path.read_bytes().decode("utf-8", "replace")))


def use(tokenizer: Tokenizer) -> object:
    ids = tokenizer.encode("the Cat sat, on 17\u2028mats\U0001f600")
    return tokenizer.decode(ids), tokenizer.pieces(ids)


def go_on_with(path: Path) -> object:
    """The journal of a run that is resumed."""
    lines = read_journal(path)
    Journal(path.parent, 500, 500).close()
    return lines


def read_links(path: Path) -> object:
    return parse_alignments(read_lines(path, blank=True), str(path))


def traces() -> tuple[bytes, Any, dict[str, torch.Tensor]]:
    """A recorded trace: as bytes, and as the structure and tensors in it."""
    torch.manual_seed(0)
    model = MultiHeadAttention(8, 2, normalizer=Softmax())
    with record(model) as trace, torch.no_grad():
        model(torch.randn(2, 4, 8), mask=Causal() & Lengths(torch.tensor([4, 3])))
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"trace-{os.getpid()}.safetensors"
    try:
        trace.save(path)
        data = path.read_bytes()
        with safetensors.safe_open(path, "pt") as file:
            plain = json.loads(file.metadata()[KEY])
    finally:
        path.unlink(missing_ok=True)
    return data, plain, safetensors.torch.load(data)


def spoilt_trace(folder: Path) -> Attempt:
    """A trace whose bytes are corrupted."""
    return one_file("trace.safetensors", [traces()[0]], read_trace).make(folder)


def forged_trace(folder: Path) -> Attempt:
    """A trace whose structure is wrong."""
    _, plain, tensors = traces()
    path = folder / "trace.safetensors"

    def attempt(random: Random) -> object:
        path.write_bytes(safetensors.torch.save(tensors, {KEY: json.dumps(spoil_plain(plain, random))}))
        return read_trace(path)

    return attempt


def published_folder(name: str) -> Callable[[Path], Attempt]:
    """A published model whose settings, tokenizer or weights are corrupted."""
    sound = {path.name: path.read_bytes() for path in (FAMILIES / name).iterdir() if path.name in PUBLISHED}
    texts = not {"tokenizer.json", "source.spm"}.isdisjoint(sound)

    def make(folder: Path) -> Attempt:
        home = folder / "model"

        def attempt(random: Random) -> object:
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            for file, data in sound.items():
                (home / file).write_bytes(data)
            file = random.choice(sorted(sound))
            if file.endswith(".json") and random.random() < 0.8:
                (home / file).write_text(json.dumps(spoil_plain(json.loads(sound[file]), random)))
            elif file.endswith(".safetensors") and random.random() < 0.5:
                (home / file).write_bytes(_spoil_tensors(sound[file], random))
            else:
                (home / file).write_bytes(spoil_bytes(sound[file], random))
            return use(load(home).tokenizer) if texts else read_folder(Folder(home)).build()

        return attempt

    return make


def continued_run(name: str) -> Callable[[Path], Attempt]:
    """A run that continued from a published model, with a wrong tokenizer, or wrong rules of the library in it."""

    def make(folder: Path) -> Attempt:
        contents = open_published(Folder(FAMILIES / name)).contents
        contents = replace(contents, config={**contents.config, "longest": 32})
        files, manifest = pack_contents(contents)
        sound = json.loads(files[manifests.TOKENIZER])

        def attempt(random: Random) -> object:
            home, out = folder / "run", folder / "written"
            for each in (home, out):
                shutil.rmtree(each, ignore_errors=True)
            home.mkdir()
            forged = dict(sound)
            rules = [part for part in ("source", "target") if sound[part]]
            if random.random() < 0.4:
                forged = {"format": sound["format"], **_as_table(spoil_plain(forged, random))}
            elif rules:
                inner = random.choice(rules)
                forged[inner] = json.dumps(spoil_plain(json.loads(sound[inner]), random))
            else:
                inner = random.choice(sorted(sound["files"]))
                spoilt = spoil_bytes(base64.b64decode(sound["files"][inner]), random)
                forged["files"] = {**sound["files"], inner: base64.b64encode(spoilt).decode()}
            text = json.dumps({"format": forged.pop("format"), **forged}).encode()
            _write(home, {**files, manifests.TOKENIZER: text}, manifest.tied, None)
            model: Any = load(home)
            use(model.tokenizer)
            found = model.generate(["the cat"], tokens=3) if name == "llama" else model.translate(["the cat"])
            save_for_others(model, out)
            return found

        return attempt

    return make


def _as_table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read_positions(path: Path) -> object:
    return parse_pairs(read_tsv(path), (str(path), str(path)))


def read_columns(path: Path) -> object:
    data = RegressFiles(data=path, x=("age", "area"), y="rent")
    return fit(regress_data.read_columns(data), RegressModel(bandwidth=1.0))


def corpora() -> list[Target]:
    text = "\n".join([*TEXT, "Ein Hund läuft über eine Wiese.", "", " spaces "]).encode() + b"\n"
    pairs = "".join(f"{line}\t{line[::-1]}\n" for line in TEXT).encode()
    labeled = b"good\ta stirring film\nbad\ta dull one\n"
    tagged = b"Ada\tB-PER\nwrote\tO\n\nYes\tO\n"
    journal = b'{"step": 50, "kind": "train", "loss": 5.1}\n{"step": 500, "kind": "validation", "better": true}\n'
    return [
        one_file("lines.txt", [text], lambda path: read_lines(path, blank=True)),
        one_file("lines.txt.gz", [text], lambda path: read_lines(path, blank=True)),
        one_file("play.txt", [text], read_text),
        one_file("pairs.txt", [text.replace(b"\n\n", b"\n")], lambda path: read_pairs(path, path)),
        one_file("pairs.tsv", [pairs], read_tsv),
        one_file("labeled.tsv", [labeled], read_labeled),
        one_file("points.tsv", [b"1 2 3\t3 1\n4 5\t2\n", b"0.5,1 2,3\t1\n", b"a b\t2\n"], read_positions),
        one_file("rents.csv", [b"age,area,rent\n1,2.5,3\n4,5,6e3\n", b"age;rent;area\n1;2;3\n"], read_columns),
        one_file("tagged.conll", [tagged, tagged.replace(b"\t", b" ")], read_tagged),
        one_file(
            "links.align",
            [b"0-0 1-1 2p3\n\n0-1\n"],
            lambda path: parse_alignments(read_lines(path, blank=True), str(path)),
        ),
        one_file("metrics.jsonl", [journal], go_on_with),
    ]


def shown(recipe: AnyRecipe) -> str:
    return to_toml(recipe.show_settings(recipe.load_settings({})))


def targets() -> list[Target]:
    """All targets."""
    tokenizers = [Tokenizer.learn(TEXT * 3, kind=kind, size=300).to_json() for kind in ("bpe", "word", "char")]
    plain_tokenizers = [json.loads(text) for text in tokenizers]
    packed = pack_contents(small(1))[0]["model.safetensors"]
    recipes: tuple[AnyRecipe, ...] = (training.RECIPE, language_training.RECIPE, CLASSIFY, *BARE)
    made = families()
    return [
        one_file("model.safetensors", [packed], lambda path: unpack(path.read_bytes(), {}, str(path)), 8),
        Target("altered checkpoint", altered_checkpoint, 6),
        *(Target(f"forged {name}", forged_checkpoint(contents), 3) for name, contents in made.items()),
        Target("forged trainer", forged_trainer, 2),
        Target("run folder", run_folder, 2),
        *(Target(f"published {name}", published_folder(name), 3) for name in ("llama", "bert", "marian", "gemma3")),
        *(Target(f"continued {name}", continued_run(name), 3) for name in ("llama", "marian")),
        one_file("tokenizer.json", [text.encode() for text in tokenizers], use_tokenizer),
        plain_file("tokenizer.json", plain_tokenizers, use_tokenizer),
        *(settings_file(recipe.settings.name, recipe.load_settings, shown(recipe)) for recipe in recipes),
        Target("trace.safetensors", spoilt_trace),
        Target("structure of trace.safetensors", forged_trace, 6),
        *corpora(),
    ]
