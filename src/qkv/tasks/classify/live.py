"""A classifier as a model of a page that computes."""

from torch import nn

from qkv.data.tokenizer import Tokenizer
from qkv.errors import setting
from qkv.models.configs.reader import ClassifierConfig
from qkv.models.reader import TextClassifier
from qkv.tasks.page_parts import embedding, encoder, page_model, stack
from qkv.view.live import LiveModel, lacks


def page_of(model: nn.Module, tokenizer: Tokenizer, labels: tuple[str, ...], longest: int) -> LiveModel:
    """Return what a page needs of a classifier.

    Args:
        model: the network, with weights of `rounded_to_int8`.
        tokenizer, labels, longest: of the classifier.

    Raises:
        UnsupportedError: it has a part that a page cannot compute.
    """
    if not (isinstance(model, TextClassifier) and isinstance(model.config, ClassifierConfig) and model.wide is None):
        raise lacks("a published classifier, or a linear model of words beside it", "Omit " + setting("wide") + ".")
    of_model = model.parts
    cells = blocks = None
    if of_model.recurrent is not None:
        cells = {"name": "reader.recurrent", "cell": of_model.recurrent, "layers": of_model.layers}
    elif of_model.layers:
        blocks = stack("reader.blocks", of_model.layers, of_model)
    first = embedding("reader.embed", of_model.embed_scale, of_model.positions.kind, "reader.positions")
    reader = encoder(first, "reader.norm", stack=blocks, cells=cells) | {"residual": of_model.residual}
    parts = {"task": "classify", "encoder": reader, "pool": "pool.attention", "embedding": None, "norm": ""}
    return page_model(model, tokenizer, longest, parts, labels=labels)
