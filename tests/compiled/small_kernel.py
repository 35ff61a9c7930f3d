"""Kernels that compile fast, for tests of what every kernel does."""

from qkv.compiled.kernels import kernel


@kernel("void(i8, i8, F[::1])", scratch=0)
def double(start, stop, x):
    """Double the numbers start to stop."""
    for i in range(start, stop):
        x[i] *= 2


@kernel("void(i8, i8, F[:,::1], F[::1], F[:,::1])", scratch=1)
def add_each(start, stop, rows, sums, room):
    """Sum the rows start to stop by way of scratch, which may hold anything before."""
    for i in range(start, stop):
        room[0, 0] = 0
        for j in range(rows.shape[1]):
            room[0, 0] += rows[i, j]
        sums[i] = room[0, 0]
