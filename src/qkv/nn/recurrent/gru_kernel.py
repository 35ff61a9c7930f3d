"""One step of a gated recurrent unit after its matrix products, and its gradients: one pass over each row.

PyTorch takes eight operations for the step, and fourteen for its gradients, half of which pad a slice with zeros.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, kernel
from qkv.compiled.tanh import tanh_of

# Exact in both float types; a Python number would lift float32 to float64.
ONE, HALF = np.float32(1), np.float32(0.5)


@helper
def _sigmoid(x):
    """σ(x) = ½ + ½ tanh(½ x), with an absolute error of at most half a unit in the last place of 1."""
    return HALF + HALF * tanh_of(HALF * x)


@helper
def _step(x, u, h, out, r, z, n):
    """Compute r, z, n = tanh(x_n + r·u_n) and h' = n + z (h − n) for one row."""
    wide_registers()
    width = h.size
    for c in range(width):
        r[c] = _sigmoid(x[c] + u[c])
        z[c] = _sigmoid(x[width + c] + u[width + c])
        n[c] = tanh_of(x[2 * width + c] + r[c] * u[2 * width + c])
        out[c] = n[c] + z[c] * (h[c] - n[c])


@kernel("void(i8, i8, F[:,::1], F[:,::1], F[:,::1], F[:,::1], F[:,:,::1])", scratch=0)
def forward(start, stop, inputs, recurrent, hidden, out, gates):
    """Compute the rows start to stop.

    Args:
        start, stop: the range of rows.
        inputs: W x + b for r, z, n, (B, 3M).
        recurrent: U h + b for the same, (B, 3M).
        hidden: h (B, M).
        out: h' (B, M), written.
        gates: r, z and n (B, 3, M), written.
    """
    for b in range(start, stop):
        _step(inputs[b], recurrent[b], hidden[b], out[b], gates[b, 0], gates[b, 1], gates[b, 2])


@helper
def _slopes(g, u, h, r, z, n, to_x, to_u, to_h):
    wide_registers()
    width = h.size
    for c in range(width):
        of_n = g[c] * (ONE - z[c]) * (ONE - n[c] * n[c])
        of_z = g[c] * (h[c] - n[c]) * (z[c] * (ONE - z[c]))
        of_r = of_n * u[2 * width + c] * (r[c] * (ONE - r[c]))
        to_x[c], to_x[width + c], to_x[2 * width + c] = of_r, of_z, of_n
        to_u[c], to_u[width + c], to_u[2 * width + c] = of_r, of_z, of_n * r[c]
        to_h[c] = g[c] * z[c]


@kernel("void(i8, i8, F[:,::1], F[:,::1], F[:,::1], F[:,:,::1], F[:,::1], F[:,::1], F[:,::1])", scratch=0)
def backward(start, stop, grad, recurrent, hidden, gates, to_inputs, to_recurrent, to_hidden):
    """Compute the gradients of the rows start to stop.

    Args:
        start, stop: the range of rows.
        grad: the gradient of h' (B, M).
        recurrent, hidden, gates: as in `forward`.
        to_inputs, to_recurrent, to_hidden: gradients of these, (B, 3M), (B, 3M) and (B, M), written; the last without
            the part that flows through U h.
    """
    for b in range(start, stop):
        r, z, n = gates[b, 0], gates[b, 1], gates[b, 2]
        _slopes(grad[b], recurrent[b], hidden[b], r, z, n, to_inputs[b], to_recurrent[b], to_hidden[b])
