"""Creating a pointer network for the elements of its training lines."""

from dataclasses import replace

import numpy as np
import torch

from qkv.models.configs.pointer import PointerConfig
from qkv.models.pointer import PointerNetwork
from qkv.tasks.point.data import PointLines


def new_model(config: PointerConfig, lines: PointLines) -> PointerNetwork:
    """Create a model with new weights, which standardizes its elements by those of the training lines."""
    model = PointerNetwork(replace(config, elements=lines.elements, features=lines.features))
    if lines.elements == "numbers":
        numbers = np.concatenate([item.elements for item in lines.train])
        model.encoder.standardize(torch.from_numpy(numbers.mean(0)), torch.from_numpy(numbers.std(0)))
    return model
