"""Parameters divided among processes by FSDP2: which parts of a model, and which methods gather them."""

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from qkv.nn.blocks import TransformerBlock
from qkv.values.checked import checked

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Model = TypeVar("Model", bound=nn.Module)
_METHODS = ("begin", "step", "read", "start", "advance", "predict", "states", "logits")
"""What is called of models and blocks beside `forward`, at which alone FSDP2 would gather their parameters."""


@checked
def fully_shard(model: Model, mesh: "DeviceMesh | None" = None) -> Model:
    """Divide the parameters of a model among processes by FSDP2: each block on its own, then the rest.

    `torch.distributed.fsdp.fully_shard` gathers parameters for `forward` only; here also for `step` of blocks, by which
    language models and translators run them, and for `advance`, `read` and the others that predict without `forward`.

    Args:
        model: any model; what is a `qkv.nn.TransformerBlock` in it is gathered and freed on its own.
        mesh: the processes, `torch.distributed.device_mesh.init_device_mesh("cpu", (2,))`; None for all.

    Returns:
        The model, changed in place: its parameters are DTensors, its gradients the means over all processes.

    Raises:
        ConfigError: an argument is not one of these.

    Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".

    Example:
        >>> import torch.distributed as dist
        >>> from qkv.models import DecoderConfig, LanguageModel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> model = LanguageModel(DecoderConfig(size=20, width=16, heads=2))
        >>> type(fully_shard(model, init_device_mesh("cpu", (1,))).embed.weight).__name__
        'DTensor'
        >>> dist.destroy_process_group()
    """
    from torch.distributed import fsdp

    blocks: list[nn.Module] = [x for x in model.modules() if isinstance(x, TransformerBlock) and x is not model]
    inside = {id(x) for block in blocks for x in block.parameters()}
    # Any parameter that a part gathers itself shows whether it has.
    signs = [next((name for name, _ in block.named_parameters()), None) for block in blocks]
    signs.append(next((name for name, x in model.named_parameters() if id(x) not in inside), None))
    parts: list[nn.Module] = [*blocks, model]
    for part, sign in zip(parts, signs, strict=True):
        fsdp.fully_shard(part, mesh=mesh, reshard_after_forward=True)
        for method in _METHODS:
            if sign is not None and hasattr(type(part), method):
                _gather_for(part, method, sign)
    return model


def _gather_for(module: nn.Module, method: str, sign: str) -> None:
    """Let a method gather the parameters of a module, unless a caller has: `forward`, another method, or hooks.

    Args:
        module: one that FSDP2 has divided.
        method: its name.
        sign: the name of a parameter, which is a DTensor while they are divided.
    """
    from torch.distributed import fsdp
    from torch.distributed.tensor import DTensor

    plain = getattr(module, method)
    fsdp.register_fsdp_forward_method(module, method)
    gathering = getattr(module, method)

    @functools.wraps(plain)
    def call(*args: Any, **options: Any) -> Any:
        divided = isinstance(module.get_parameter(sign), DTensor)
        return (gathering if divided else plain)(*args, **options)

    setattr(module, method, call)
