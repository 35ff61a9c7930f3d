"""`qkv train tag`: from settings to a trained run folder."""

from qkv.tasks.classify.recipe import label_recipe
from qkv.tasks.tag.data import read_texts
from qkv.tasks.tag.settings import TAG

RECIPE = label_recipe(TAG, read_texts, "sentences")
