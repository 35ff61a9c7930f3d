"""Trained models on disk, for any task: the checkpoint of a run or the folder of another library, and its network."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.checkpoint.contents import Contents, StoredWeights
from qkv.checkpoint.folder import load_weights_later, verify
from qkv.checkpoint.plain import decode
from qkv.checkpoint.rotation import locate
from qkv.data.published import FLAGS, Published, of_sentencepieces, with_flags
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, DataError, OutOfMemoryError, setting
from qkv.files import FREE, as_path, room_for
from qkv.hub.families.family import Family
from qkv.hub.families.keys import SettingsReader
from qkv.hub.families.load import PUBLISHED, PublishedConfig, StackModel, is_published, read_folder
from qkv.hub.folder import CONFIG, INDEX, Folder
from qkv.tasks.notes import note

OTHER_VERSION = "It was written by another version: retrain, or install that version."
"""A hint about a configuration that does not have what a model needs."""
_MISFIT = (ConfigError, RuntimeError, ValueError, TypeError, OverflowError)
M = TypeVar("M", bound=nn.Module)
S = TypeVar("S", bound=StackModel)
_INITIALIZERS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_GENERATION = "generation_config.json"
_SENTENCEPIECES = ("source.spm", "target.spm", "vocab.json")


class Trained(NamedTuple):
    """A trained checkpoint.

    Attributes:
        folder: the checkpoint's folder.
        contents: its weights, configuration and metrics.
        stored_tokenizer: text to ids; None for a model that reads numbers.
        task: name of the task.
    """

    folder: Path
    contents: Contents
    stored_tokenizer: Tokenizer | None
    task: str

    @property
    def published(self) -> bool:
        """Whether the model comes from another library: from its folder, or from a run that continued from it."""
        return self.model_table.get("kind") == PUBLISHED

    @property
    def model_table(self) -> Mapping[str, Any]:
        """The settings of the model as config.json has them; none if it has no such table."""
        table = self.contents.config.get("model")
        return table if isinstance(table, Mapping) else {}

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids.

        Raises:
            CheckpointError: the model reads numbers, and has none.
        """
        if self.stored_tokenizer is None:
            files = "Copy the model's tokenizer.json, or source.spm, target.spm and vocab.json, into the folder."
            hint = files if self.published else "Give the run of a model that reads text."
            raise CheckpointError(str(self.folder), "a checkpoint with a tokenizer", "one without", hint)
        return self.stored_tokenizer


def load_trained(run: str | Path) -> Trained:
    """Read the best checkpoint of a run, one checkpoint, or the folder of a published model.

    Args:
        run: run folder, one checkpoint in it, or the folder of a model that another library wrote.

    Returns:
        Its contents.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete, corrupted, or has no task.
    """
    if (published := published_folder(run)) is not None:
        return open_published(published)
    folder = locate(as_path(run, "run"), note)
    contents = load_weights_later(folder)
    task = contents.config.get("task")
    if not isinstance(task, str):
        hint = "Give the folder that `qkv train` wrote."
        raise CheckpointError(str(folder), "a checkpoint with its task", "one without it", hint)
    return Trained(folder, contents, tokenizer_of(contents), task)


def digest_of(run: str | Path) -> str:
    """Return one sha256 over every byte of the best checkpoint of a run, of one checkpoint, or of a published model.

    Args:
        run: as for `load_trained`.

    Raises:
        CheckpointError: the checkpoint is missing, or altered.
    """
    published = published_folder(run)
    return verify(locate(as_path(run, "run"), note)).digest if published is None else published_digest(published)


def tokenizer_of(contents: Contents) -> Tokenizer | None:
    """Return the tokenizer of a checkpoint, if it has one."""
    text = contents.tokenizer
    return None if text is None else Tokenizer.from_json(text, vocabulary_of(contents.config))


def published_folder(run: str | Path) -> Folder | None:
    """Return the folder of a published model; None if the path is anything else."""
    path = as_path(run, "run")
    if not os.path.isdir(path):
        return None
    folder = Folder(path)
    return folder if is_published(folder) else None


def open_published(folder: Folder) -> Trained:
    """Read the model of another library.

    Args:
        folder: its folder.

    Returns:
        The same as for a checkpoint of ours; without a tokenizer if the folder has none.

    Raises:
        CheckpointError: the folder does not hold what it should.
    """
    pretrained = read_folder(folder)
    settings = pretrained.published
    longest = pretrained.config.context
    config: dict[str, Any] = {"task": pretrained.family.task, "model": settings.to_table(), "longest": longest}
    if pretrained.config.labels:
        config["labels"] = list(settings.labels)
    try:
        tokenizer = _tokenizer(folder, pretrained.family, pretrained.config.size)
    except DataError as error:
        raise error.as_kind(CheckpointError) from error
    text = None if tokenizer is None else tokenizer.to_json()
    return Trained(folder.path, Contents(pretrained.tensors, config, text), tokenizer, pretrained.family.task)


def published_digest(folder: Folder) -> str:
    """Return one sha256 over every file that `open_published` reads, and no other.

    Args:
        folder: the folder of a published model.

    Raises:
        CheckpointError: the folder does not hold what it should.
    """
    tokenizers = (_TOKENIZER, _TOKENIZER_CONFIG) if folder.has(_TOKENIZER) else _SENTENCEPIECES
    named = (name for name in (CONFIG, _GENERATION, INDEX, *tokenizers) if folder.has(name))
    return folder.digest({*named, *folder.weights().files})


def vocabulary_of(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a published model reads, by the configuration of a run that continued from it.

    Args:
        config: the checkpoint's configuration.

    Returns:
        The number; None for a model of ours, whose tokenizer says it.

    Raises:
        CheckpointError, ConfigError: the model's settings are not those of a family.
    """
    match config.get("model"):
        case {"kind": "published", "settings": str(settings), **rest}:
            stored = rest.get("stored")
            return PublishedConfig(settings, stored if isinstance(stored, str) else "").described().config.size
    return None


def _tokenizer(folder: Folder, family: Family, limit: int) -> Tokenizer | None:
    marks = _marks(folder, family, limit)
    if folder.has(_TOKENIZER):
        where = str(folder.path / _TOKENIZER)
        source = with_flags(folder.text(_TOKENIZER), _flags(folder), where)
        return Tokenizer.of_published(Published(source, **marks, where=where, limit=limit))
    if not all(folder.has(name) for name in _SENTENCEPIECES):
        return None
    source, target, numbers = _SENTENCEPIECES
    table = folder.table(numbers)
    marks["unk"] = table.get("<unk>", marks["unk"])
    models = folder.read(source), folder.read(target)
    return Tokenizer.of_published(of_sentencepieces(*models, table, **marks, folder=str(folder.path), limit=limit))


def _flags(folder: Folder) -> dict[str, bool | None]:
    """Return the flags of tokenizer_config.json, which win over tokenizer.json, as in `transformers`.

    Its plain class, which takes tokenizer.json as it is, reads none of them.
    """
    table = folder.table(_TOKENIZER_CONFIG) if folder.has(_TOKENIZER_CONFIG) else {}
    if table.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return {}
    keys = SettingsReader(table, {}, str(folder.path / _TOKENIZER_CONFIG))
    flags: dict[str, bool | None] = {name: keys.flag(name) for name in FLAGS if table.get(name) is not None}
    # Without a value, accents are stripped where text is lower-cased.
    return flags | {name: None for name in ("strip_accents",) if name in table and name not in flags}


def _marks(folder: Folder, family: Family, limit: int) -> dict[str, Any]:
    """Return the special tokens that config.json and generation_config.json name; the second wins.

    A number that the model does not read is that of no token: small models for tests have them.
    """
    table = folder.table(CONFIG)
    if folder.has(_GENERATION):
        table |= {name: item for name, item in folder.table(_GENERATION).items() if item is not None}
    keys = family.settings(table, str(folder.path / CONFIG))
    numbers = {short: keys.token(f"{short}_token_id") for short in ("pad", "bos", "eos")}
    if family.task == "translate":
        start = keys.token("decoder_start_token_id")
        numbers["bos"] = numbers["pad"] if start is None else start
    marks = {name: -1 if number is None or number >= limit else number for name, number in numbers.items()}
    if marks["pad"] < 0:
        marks["pad"] = marks["eos"]
    more_ends = tuple(number for number in keys.tokens("eos_token_id")[1:] if number < limit)
    # A forbidden sequence of several tokens rules out no single token, so only those of one token count.
    words = [word[0] for word in keys.token_lists("bad_words_ids") if len(word) == 1]
    never = tuple(number for number in (*keys.tokens("suppress_tokens"), *words) if number < limit)
    return {**marks, "unk": -1, "others": more_ends, "never": never}


def expect_task(trained: Trained, task: str, what: str) -> None:
    """Refuse a checkpoint of another task.

    Args:
        trained: the checkpoint.
        task: the expected task.
        what: a description of such a model.

    Raises:
        CheckpointError: it is of another task.
    """
    if trained.task != task:
        hint = f"Use `qkv {trained.task}`, the command for its task."
        raise CheckpointError(str(trained.folder), what, f"one trained to {trained.task}", hint)


def as_device(name: str | torch.device) -> torch.device:
    """Return the device with a name, or the device itself if it is available.

    Raises:
        ConfigError: the device is not available.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" tensors hold no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        is_known_device = isinstance(error, AssertionError | NotImplementedError) or "Expected one of" not in str(error)
        got = f"{name}: {str(error).splitlines()[0]}" if is_known_device else f'"{name}"'
        names = " or ".join(f'"{device}"' for device in available_devices())
        expected = f"an available device, on this machine {names}"
        hint = 'PyTorch calls GPUs of Nvidia and AMD "cuda", those of Apple "mps".'
        raise ConfigError(setting("device"), expected, got, hint) from None
    return device


def available_devices() -> list[str]:
    """Return the names of the devices that PyTorch can use on this machine."""
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ["cpu", *(name for name, available in gpus.items() if available)]


def rebuild(
    make: Callable[[], M],
    trained: Trained,
    device: str | torch.device = "cpu",
    weights: Mapping[str, Tensor] | None = None,
) -> M:
    """Create the model of a checkpoint with its weights, on a device and in evaluation mode.

    No memory is allocated before the configured sizes match those of the stored weights. PyTorch rejects sizes of more
    than 64 bits in several ways, including a `TypeError`.

    Args:
        make: creates the model from the checkpoint's configuration.
        trained: the checkpoint.
        device: compute device.
        weights: use these weights instead of its own, such as an average of checkpoints.

    Returns:
        The model.

    Raises:
        CheckpointError: the weights do not fit the model, or the model is unknown.
        ConfigError: the device is not available.
        OutOfMemoryError: the model does not fit in memory.
    """
    compute_device = as_device(device)
    stored = trained.contents.model if weights is None else weights
    try:
        _expect_few_layers(trained.model_table, len(stored))
        try:
            with _SkipInitialization(), torch.device("meta"):
                _expect_sizes(make().state_dict(), stored)
        except OutOfMemoryError as error:  # meta tensors need no memory: the sizes are impossible
            raise _misfit(trained, error) from error
        with room_for(trained.folder, FREE), _SkipInitialization():
            model = make()
    except CheckpointError:
        raise  # its message is complete
    except _MISFIT as error:
        raise _misfit(trained, error) from error
    tensors = stored.read() if isinstance(stored, StoredWeights) else dict(stored)
    try:
        with room_for(trained.folder, FREE):
            model.load_state_dict(tensors)
    except _MISFIT as error:
        raise _misfit(trained, error) from error
    return model.to(compute_device).eval()


def rebuild_reader(trained: Trained, kind: type[S], device: str | torch.device = "cpu") -> S:
    """Build the encoder of a published model and load its weights.

    Args:
        trained: as `open_published` reads it.
        kind: the class that it must have.

    Raises:
        CheckpointError: it has another class, or the weights do not fit.
    """
    return rebuild(lambda: PublishedConfig.from_table(trained.model_table).build_as(kind, "a reader"), trained, device)


def _misfit(trained: Trained, error: Exception) -> CheckpointError:
    hint = "Copy the folder again from its source." if trained.published else OTHER_VERSION
    got = str(error).partition("\n")[0][:200]
    return CheckpointError(str(trained.folder), "weights of the model in config.json", got, hint)


class _SkipInitialization(TorchFunctionMode):
    """Skip weight initialization, because stored weights replace the initial ones.

    On the meta device, PyTorch's initializers would import its compiler, which takes longer than everything else in
    loading.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        return (*args, *named.values())[0] if func in _INITIALIZERS else func(*args, **named)


def _expect_few_layers(table: object, tensors: int) -> None:
    """Refuse a configuration with more layers than stored tensors, because every layer has weights."""
    for name, size in table.items() if isinstance(table, Mapping) else ():
        if name == "settings" and isinstance(size, str):
            _expect_few_layers(decode(size.encode(), "model.settings"), tensors)
        counts = str(name).endswith(("layers", "n_layer")) and name != "max_window_layers"
        if counts and isinstance(size, int) and size > tensors:
            raise ValueError(f"{size:,} {name} in config.json, but {tensors:,} tensors")


def _expect_sizes(expected: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    ours, theirs = _shapes(expected), _shapes(stored)
    for name in sorted(ours.keys() | theirs.keys()):
        sizes = ours.get(name), theirs.get(name)
        if sizes[0] != sizes[1]:
            words = ["none" if size is None else f"one of sizes {size}" for size in sizes]
            raise ValueError(f"{words[1]} named {name} where config.json has {words[0]}")


def _shapes(tensors: Mapping[str, Tensor]) -> Mapping[str, tuple[int, ...]]:
    return (
        tensors.shapes if isinstance(tensors, StoredWeights) else {name: tuple(x.shape) for name, x in tensors.items()}
    )
