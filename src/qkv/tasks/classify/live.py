"""A classifier as a model of a page that computes."""

from typing import Any

from qkv.errors import setting
from qkv.models.configs.reader import ClassifierConfig
from qkv.models.reader import TextClassifier
from qkv.tasks.classify.predict import Classifier
from qkv.tasks.page_parts import embedding, encoder, page_model, stack
from qkv.view.live import LiveModel, lacks, rounded_to_int8


def in_page(classifier: Classifier) -> tuple[Classifier, LiveModel]:
    """Return a classifier with the weights of its page, and what the page needs; errors as for `ComputesInPage`."""
    model: Any = rounded_to_int8(classifier.model)
    if (
        not isinstance(model, TextClassifier)
        or not isinstance(model.config, ClassifierConfig)
        or model.wide is not None
    ):
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
    rounded = Classifier(model, classifier.tokenizer, classifier.labels, classifier.longest)
    return rounded, page_model(rounded.model, classifier.tokenizer, classifier.longest, parts, labels=classifier.labels)
