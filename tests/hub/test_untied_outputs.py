"""An output layer that is not tied to the embedding has a bias of its own, which `transformers` uses."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from tests.hub import theirs
from tests.hub.published import inputs
from tests.hub.test_families import CLOSE, load, logits_of

pytestmark = pytest.mark.filterwarnings("ignore")
_SEED = 7


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_the_own_bias_of_an_untied_output_is_used(name: str, tmp_path: Path) -> None:
    config = deepcopy(theirs.make(name, _SEED).config)
    config.tie_word_embeddings = False
    model = type(theirs.make(name, _SEED))(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("bias"):
                parameter.normal_()
    theirs.write(model, tmp_path / "model")
    given = inputs(_SEED)
    expected = theirs.logits(model, name, given)
    found = logits_of(load(tmp_path / "model"), given)
    assert (found - expected).abs().max() <= CLOSE * expected.abs().max()
