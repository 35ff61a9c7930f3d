"""The color scales of all views: cividis, uniform in lightness and color-blind safe, and viridis."""

# Source: Nuñez, Anderton and Renslow 2018, "Optimizing colormaps with consideration for color vision deficiency".
_HEX = """
00224e 00285b 002e6a 053371 1a386f 273e6e 32436d 3b496c 434e6c 4b546c 535a6d
5a5f6e 61656f 686a71 6f7073 767676 7d7c78 848279 8c8878 938e78 9b9476 a39a74
aba072 b4a76f bcae6c c4b468 cdbb63 d5c25e dec958 e7d150 f0d846 f9e03a fee838
"""
# Source: van der Walt and Smith 2015, matplotlib's default.
_VIRIDIS_HEX = """
440154 470d60 48186a 482374 472d7b 453781 424086 3e4989 3b528b 375b8d 33638d
2f6b8e 2c728e 297a8e 26828e 23898e 21918c 1f988b 1fa088 22a785 28ae80 32b67a
3fbc73 4ec36b 5ec962 70cf57 84d44b 98d83e addc30 c2df23 d8e219 ece51b fde725
"""
# Source: ColorBrewer (Harrower and Brewer 2003), for numbers of both signs.
_SIGNED_HEX = """
2d004b 390c5e 451871 522584 5f3a91 6d529c 7b6aa8 8a7eb3 9990bf a9a1cb b7b1d5
c3c0dd cfcfe5 dadcec e4e5f0 eeeef3 f7f7f6 f9efe1 fce8cd fee1b9 fed59f fdc885
fdbc6b f7ac52 ee9b39 e58a20 d97b12 cb6e0d bd6109 ae5506 9e4c07 8d4307 7f3b08
"""
Ramp = tuple[tuple[int, int, int], ...]


def _ramp(codes: str) -> Ramp:
    return tuple((int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)) for code in codes.split())


RAMP: Ramp = _ramp(_HEX)
RAMPS: dict[str, Ramp] = {"cividis": RAMP, "viridis": _ramp(_VIRIDIS_HEX), "PuOr_r": _ramp(_SIGNED_HEX)}


def color(fraction: float, ramp: Ramp = RAMP) -> tuple[int, int, int]:
    """Return the color at a position of the scale.

    Args:
        fraction: 0 (dark blue) to 1 (yellow).
        ramp: one of `RAMPS`.

    Returns:
        Red, green and blue, each 0 to 255.

    Example:
        >>> color(0.0), color(1.0)
        ((0, 34, 78), (254, 232, 56))
    """
    position = fraction * (len(ramp) - 1)
    below = min(int(position), len(ramp) - 2)
    part = position - below
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(ramp[below], ramp[below + 1], strict=True))
    return red, green, blue


def ink(fraction: float) -> tuple[int, int, int]:
    """Return a text color that is readable on `color(fraction)`.

    Args:
        fraction: 0 to 1, as for `color`.

    Returns:
        Near white on the dark half of the scale, near black on the light half.

    Example:
        >>> ink(0.0), ink(1.0)
        ((245, 245, 240), (20, 24, 32))
    """
    return (245, 245, 240) if fraction < 0.45 else (20, 24, 32)
