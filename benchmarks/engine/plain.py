"""The RNN translation model as PyTorch users write it: PyTorch's modules, the full tensor of tanhs in every step, and
autograd for everything. It shares the parameters and draws the same dropout.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.data.batches import Batch
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.nn.scores import AdditiveScore


def loss_of(model: RecurrentTranslator, batch: Batch, pad: int, smoothing: float) -> tuple[Tensor, int]:
    """Return the summed, label-smoothed cross entropy of each next target token, and the number of tokens."""
    states = _states(model, batch.source, batch.source_lengths, batch.target[:, :-1])
    logits = F.linear(states, model.output.weight, model.output.bias)
    target = batch.target[:, 1:]
    flat = logits.flatten(0, 1), target.flatten()
    loss = F.cross_entropy(*flat, ignore_index=pad, reduction="sum", label_smoothing=smoothing)
    return loss, int((target != pad).sum())


def _states(model: RecurrentTranslator, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    seen = torch.arange(source.shape[1]) < lengths[:, None]
    packed = pack_padded_sequence(model.dropout(model.embed(source)), lengths, batch_first=True, enforce_sorted=False)
    found, last = model.encoder(packed)
    encoded, _ = pad_packed_sequence(found, batch_first=True, total_length=source.shape[1])
    memory = model.dropout(torch.where(seen[..., None], encoded, 0))
    score = model.score
    assert isinstance(score, AdditiveScore)
    keys = F.linear(memory, score.key_weight)
    hidden = torch.tanh(model.bridge(torch.cat([last[0], last[1]], -1)))
    embedded = model.dropout(model.embed(target))
    assert model.from_context is not None
    gates = torch.cat([model.from_embedding.weight, model.from_context.weight], 1)
    outputs, contexts = [], []
    for y in embedded.unbind(1):
        pairs = torch.tanh(F.linear(hidden, score.query_weight)[:, None] + keys)
        weights = torch.softmax((pairs @ score.vector).masked_fill(~seen, -torch.inf), -1)
        context = (weights[:, None] @ memory)[:, 0]
        given = torch.cat([y, context], -1)
        recurrent = model.from_hidden
        hidden = torch.gru_cell(given, hidden, gates, recurrent.weight, model.from_embedding.bias, recurrent.bias)
        outputs.append(hidden)
        contexts.append(context)
    read = torch.cat([torch.stack(outputs, 1), torch.stack(contexts, 1), embedded], -1)
    states: Tensor = model.dropout(torch.tanh(F.linear(read, model.readout.weight, model.readout.bias)))
    return states
