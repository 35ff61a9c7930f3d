"""`qkv.load`: load a trained model of any task."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from qkv.tasks.runs import load_model

if TYPE_CHECKING:
    from qkv.tasks.classify.predict import Classifier
    from qkv.tasks.fill import MaskFiller
    from qkv.tasks.generate.predict import Generator
    from qkv.tasks.point.predict import ElementPointer
    from qkv.tasks.regress.predict import Regressor
    from qkv.tasks.tag.predict import Tagger
    from qkv.tasks.translate.predict import Translator

Task = Literal["translate", "generate", "fill", "classify", "tag", "point", "regress"]


# One overload for each task gives editors and type checkers the class of the model.
@overload
def load(
    run: str | Path, device: str | torch.device = ..., *, task: Literal["translate"], download: bool = ...
) -> "Translator": ...
@overload
def load(
    run: str | Path, device: str | torch.device = ..., *, task: Literal["generate"], download: bool = ...
) -> "Generator": ...
@overload
def load(
    run: str | Path, device: str | torch.device = ..., *, task: Literal["fill"], download: bool = ...
) -> "MaskFiller": ...
@overload
def load(
    run: str | Path, device: str | torch.device = ..., *, task: Literal["classify"], download: bool = ...
) -> "Classifier": ...
@overload
def load(
    run: str | Path, device: str | torch.device = ..., *, task: Literal["tag"], download: bool = ...
) -> "Tagger": ...
@overload
def load(
    run: str | Path, device: str | torch.device = ..., *, task: Literal["point"], download: bool = ...
) -> "ElementPointer": ...
@overload
def load(
    run: str | Path, device: str | torch.device = ..., *, task: Literal["regress"], download: bool = ...
) -> "Regressor": ...
@overload
def load(run: str | Path, device: str | torch.device = ..., *, task: None = ..., download: bool = ...) -> Any: ...
def load(
    run: str | Path, device: str | torch.device = "cpu", *, task: Task | None = None, download: bool = False
) -> Any:
    """Load a trained model with its tokenizer, ready to use.

    Args:
        run: run folder, whose best checkpoint is used, or one checkpoint in it; the folder of an ensemble; "example", a
            German-English translator of 270 words in the package (`qkv.data.phrases`); or a folder
            that `transformers` wrote: GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, Qwen3, Gemma 1 to 3, BERT, RoBERTa,
            XLM-RoBERTa, DistilBERT, ModernBERT, Marian, Pegasus, BART, mBART, M2M-100, NLLB or T5, in safetensors.
            Nothing in it is executed or unpickled. A name such as "gpt2" that is no folder is looked up in the local
            cache of `huggingface_hub`.
        device: compute device.
        task: the task that it must have been trained for, by which a type checker knows the class of the model; None
            for any.
        download: whether a name that is no folder is downloaded by `huggingface_hub` first, in its newest revision;
            what the cache has already is not. Without it no network is used.

    Returns:
        A `Translator`, `Generator`, `MaskFiller`, `Classifier`, `Tagger`, `ElementPointer` or `Regressor`, depending on
        the task.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete, corrupted, or of an unknown task or another than `task`.
        ConfigError: there is no such task.
        UnsupportedError: `download` needs `huggingface_hub`, which is not installed.

    Example:
        >>> load("example", task="translate").translate(["Die alte Frau hat einen kleinen Hund gesehen ."])
        ['The old woman has seen a small dog .']
        >>> load("/dev/null/run")
        Traceback (most recent call last):
        qkv.errors.CheckpointError: /dev/null/run: expected a checkpoint or a run folder; got no such folder. ...
    """
    return load_model(run, device, task, download=download)
