"""Compiled loops over C-contiguous arrays: the only modules that import Numba or Triton, imported when first used."""
