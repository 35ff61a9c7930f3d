"""Copying: equations, padding, batches, greedy and beam search, and unknown names."""

import pytest
import torch
from torch import nn

from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.errors import ConfigError
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.copying import CopyingTranslator
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.nn.copy import CopyHead
from qkv.recording import record

SIZE, UNKNOWN = 20, 3
KINDS = [(model, mixing) for model in ("gru", "transformer") for mixing in ("joint", "mixture")]


def _model(kind: str, mixing: str) -> CopyingTranslator:
    torch.manual_seed(0)
    if kind == "gru":
        gru = RecurrentConfig(size=SIZE, embedding=8, hidden=8, attention=8, copy=mixing)  # type: ignore[arg-type]
        return CopyingTranslator(RecurrentTranslator(gru), UNKNOWN).double().eval()
    small = TransformerConfig(
        size=SIZE,
        width=8,
        heads=2,
        feed_forward=16,
        encoder_layers=1,
        decoder_layers=1,
        copy=mixing,  # type: ignore[arg-type]
    )
    return CopyingTranslator(TransformerTranslator(small), UNKNOWN).double().eval()


def _batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.tensor([[5, 20, 21, 5, 22], [20, 6, 20, 0, 0], [7, 8, 0, 0, 0]])
    return source, torch.tensor([5, 3, 2]), torch.tensor([[1, 20, 22, 5], [1, 20, 6, 2], [1, 7, 9, 2]])


@pytest.mark.parametrize("mixing", ["joint", "mixture"])
def test_the_mixture_is_its_equation(mixing: str) -> None:
    torch.manual_seed(0)
    head = CopyHead(10, 4, 6, 5, mixing).double()  # type: ignore[arg-type]
    logits, h, e = (torch.randn(1, n, w, dtype=torch.float64) for n, w in ((2, 10), (2, 4), (4, 6)))
    ids = torch.tensor([[7, 10, 7, 11]])
    found = head(logits, h, head.remember(e, ids, None)).exp()[0]
    scores = head.score(h, e)[0]
    for t in range(2):
        if mixing == "joint":
            both = torch.cat([logits[0, t], scores[t]]).softmax(-1)
            expected = torch.cat([both[:10], both.new_zeros(2)]).index_add(0, ids[0], both[10:])
        else:
            g = torch.sigmoid(head.switch(h)[0, t, 0])
            expected = torch.cat([g * logits[0, t].softmax(-1), logits.new_zeros(2)])
            expected = expected.index_add(0, ids[0], (1 - g) * scores[t].softmax(-1))
        torch.testing.assert_close(found[t], expected)


@pytest.mark.parametrize(("kind", "mixing"), KINDS)
def test_probabilities_sum_to_one_and_strangers_get_none(kind: str, mixing: str) -> None:
    source, lengths, target = _batch()
    found = _model(kind, mixing)(source, lengths, target)
    assert found.shape == (3, 4, SIZE + 3)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(3, 4, dtype=torch.float64))
    assert (found[1, :, SIZE + 1 :] == -torch.inf).all()
    assert (found[2, :, SIZE:] == -torch.inf).all()


@pytest.mark.parametrize(("kind", "mixing"), KINDS)
def test_steps_and_batches_say_what_all_at_once_says(kind: str, mixing: str) -> None:
    model, (source, lengths, target) = _model(kind, mixing), _batch()
    together = model(source, lengths, target)
    for row, length in enumerate(lengths.tolist()):
        alone = model(source[row : row + 1, :length], lengths[row : row + 1], target[row : row + 1])
        torch.testing.assert_close(together[row : row + 1, :, : alone.shape[-1]], alone)
    state = model.start(source, lengths)
    for place, tokens in enumerate(target.unbind(1)):
        found, state = model.step(tokens, state)
        torch.testing.assert_close(found, together[:, place])


@pytest.mark.parametrize(("kind", "mixing"), KINDS)
def test_greedy_and_beam_do_not_depend_on_the_batch(kind: str, mixing: str) -> None:
    model, (source, lengths, _) = _model(kind, mixing), _batch()
    for row, length in enumerate(lengths.tolist()):
        alone = source[row : row + 1, :length], lengths[row : row + 1]
        marks = {"bos": 1, "eos": 2, "limit": 6}
        assert greedy(model, source, lengths, **marks)[row].ids == greedy(model, *alone, **marks)[0].ids
        search = Beam(width=3, n_best=3)
        several = beam(model, source, lengths, **marks, search=search)[row]
        assert [one.ids for one in several] == [one.ids for one in beam(model, *alone, **marks, search=search)[0]]


@pytest.mark.parametrize(("kind", "mixing"), KINDS)
def test_every_parameter_learns_also_from_words_that_are_unknown(kind: str, mixing: str) -> None:
    model, (source, lengths, target) = _model(kind, mixing), _batch()
    found = model(source, lengths, target[:, :-1])
    nn.functional.nll_loss(found.flatten(0, 1), target[:, 1:].flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(("kind", "mixing"), KINDS)
def test_it_says_where_a_word_came_from(kind: str, mixing: str) -> None:
    model, (source, lengths, target) = _model(kind, mixing), _batch()
    shares, places = model.origins(source, lengths, target)
    assert shares[0, 0] == pytest.approx(1.0)  # word 20 is in no vocabulary
    assert places[0, 0] == 1
    assert shares[2, 1] == 0  # word 9 is not in the source
    with record(model) as trace:
        model(source, lengths, target)
    assert trace.weights(model.alignment_layer).shape == (3, 4, 5)


def test_an_empty_source_leaves_the_vocabulary() -> None:
    for kind, mixing in KINDS:
        found = _model(kind, mixing)(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([0]), torch.tensor([[1, 5]]))
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(1, 2, dtype=torch.float64))


def test_a_translator_that_is_not_to_copy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"copy: expected a way to copy"):
        CopyingTranslator(RecurrentTranslator(RecurrentConfig(size=SIZE, embedding=4, hidden=4)), UNKNOWN)
    with pytest.raises(ConfigError, match='Did you mean "mixture"'):
        CopyHead(9, 4, 4, 4, "mixtures")  # type: ignore[arg-type]
