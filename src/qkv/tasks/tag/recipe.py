"""`qkv train tag`: from settings to a trained run folder."""

from typing import final

from qkv.tasks.classify.recipe import LabelTask
from qkv.tasks.tag.data import read_texts
from qkv.tasks.tag.settings import TAG


@final
class TagTask(LabelTask):
    """Training a tagger of words."""

    settings, texts = TAG, "sentences"
    read_texts = staticmethod(read_texts)


RECIPE = TagTask
"""Training a tagger of words."""
