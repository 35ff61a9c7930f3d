"""The devices that PyTorch can use on this machine, by name."""

import torch

from qkv.errors import ConfigError, setting


def as_device(name: str | torch.device) -> torch.device:
    """Return the device with a name, or the device itself if it is available.

    Raises:
        ConfigError: the device is not available.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" tensors hold no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        is_known_device = isinstance(error, AssertionError | NotImplementedError) or "Expected one of" not in str(error)
        got = f"{name}: {str(error).splitlines()[0]}" if is_known_device else f'"{name}"'
        names = " or ".join(f'"{device}"' for device in available_devices())
        expected = f"an available device, on this machine {names}"
        hint = 'PyTorch calls GPUs of Nvidia and AMD "cuda", those of Apple "mps".'
        raise ConfigError(setting("device"), expected, got, hint) from None
    return device


def available_devices() -> list[str]:
    """Return the names of the devices that PyTorch can use on this machine."""
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ["cpu", *(name for name, available in gpus.items() if available)]
