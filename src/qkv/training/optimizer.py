"""Which optimizer updates which parameters, weight decay, and the optimizer state by parameter name."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from qkv.errors import CheckpointError, ConfigError
from qkv.training.muon import Muon
from qkv.training_settings import Settings
from qkv.values.execution import on_host

_PREFIX = "optimizer."
_NORMS = (
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.SyncBatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def build_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """Create the optimizer of a model; biases, norms, embeddings and vectors are not decayed.

    Args:
        model: the model; its parameters that require a gradient are trained.
        settings: optimizer, betas and weight decay; the learning rate is set at each update.

    Returns:
        The optimizer, with the decayed parameters as its first group.

    Raises:
        ConfigError: nothing can be trained.

    Source:
        Loshchilov and Hutter 2019, algorithm 2 (AdamW).

    Example:
        >>> groups = build_optimizer(nn.Linear(2, 3), Settings()).param_groups
        >>> [(group["weight_decay"], len(group["params"])) for group in groups]
        [(0.01, 1), (0.0, 1)]
    """
    spared = undecayed(model)
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        hint = "At least one parameter must require a gradient."
        raise ConfigError("model", "parameters to train", "none", hint)
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in trained if name not in spared], "weight_decay": settings.weight_decay},
        {"params": [p for name, p in trained if name in spared], "weight_decay": 0.0},
    ]
    if settings.optimizer == "muon":
        return _muon(groups[0], groups[1], settings)
    # The fused form does the same arithmetic in one pass; it requires floating-point parameters, which ours are.
    return AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=1e-9, fused=True)


def _muon(decayed: dict[str, Any], spared: dict[str, Any], settings: Settings) -> Muon:
    matrices = [p for p in decayed["params"] if p.ndim == 2]
    not_matrices = {**decayed, "params": [p for p in decayed["params"] if p.ndim != 2]}
    other_groups = [group for group in (not_matrices, spared) if group["params"]]
    return Muon({**decayed, "params": matrices}, other_groups, lr=settings.learning_rate, betas=settings.betas)


def undecayed(model: nn.Module) -> set[str]:
    """Name the parameters without weight decay: biases, norms, embeddings, and all with fewer than two dimensions.

    A matrix that is both an embedding and an output projection counts as an embedding.

    Args:
        model: any module.

    Returns:
        Their names as in `named_parameters()`.

    Example:
        >>> sorted(undecayed(nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2), nn.LayerNorm(2))))
        ['0.weight', '1.bias', '2.bias', '2.weight']
    """
    spared = set()
    for module in model.modules():
        exempt = isinstance(module, (nn.Embedding, nn.EmbeddingBag, *_NORMS))
        for name, parameter in module.named_parameters(recurse=False):
            if exempt or parameter.ndim < 2 or name.startswith("bias"):
                spared.add(id(parameter))
    return {name for name, parameter in model.named_parameters() if id(parameter) in spared}


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's moments by parameter name.

    Args:
        model: the model it trains.
        optimizer: created by `build_optimizer`.

    Returns:
        Name to tensor, for a checkpoint.
    """
    return {
        f"{_PREFIX}{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def set_optimizer_state(model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the optimizer's moments.

    Args:
        model: the model it trains.
        optimizer: created by `build_optimizer`.
        tensors: the result of `optimizer_state`; other names are ignored.

    Raises:
        CheckpointError: a moment does not fit its parameter.
    """
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for full, value in tensors.items():
        if not full.startswith(_PREFIX):
            continue
        key, _, name = full.removeprefix(_PREFIX).partition(".")
        parameter = parameters.get(name)
        if parameter is None or (key != "step" and value.shape != parameter.shape):
            got = f"{full}, {tuple(value.shape)}"
            hint = "Build the same model that was trained, or use another checkpoint."
            raise CheckpointError("trainer.safetensors", "moments that fit the model", got, hint)
        optimizer.state[parameter][key] = value.detach().to(parameter.device, copy=True)


def clip_gradient(parameters: list[nn.Parameter], limit: float) -> float:
    """Clip the gradient to a maximum norm.

    Args:
        parameters: their `.grad` is clipped in place.
        limit: maximum norm; 0 only measures.

    Returns:
        The norm before clipping.

    Source:
        Pascanu et al. 2013, algorithm 1.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    # Like PyTorch's clipping, which multiplies by one if nothing has to be clipped, and so does not wait for a GPU.
    if limit and not (on_host(norm.device) and limit / (norm + 1e-6) >= 1):
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return float(norm)


def scale_gradient(parameters: list[nn.Parameter], scale: float) -> None:
    """Multiply the gradient in place, for example to turn a sum into a mean.

    Args:
        parameters: their `.grad` is scaled.
        scale: the factor.
    """
    torch._foreach_mul_([parameter.grad for parameter in parameters if parameter.grad is not None], scale)
