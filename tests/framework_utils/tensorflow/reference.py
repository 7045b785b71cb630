"""What the layers compute, row by row in plain NumPy, and the gradients, worked out by hand.

Rows are lists of ids. Each function gives the result for a table or a kernel; its twin ending in
``_grad`` gives the gradient of ``sum(result * up)`` with respect to it.
"""

from __future__ import annotations

import numpy as np


def divisor(count: int, combiner: str) -> float:
    return {"sum": 1.0, "mean": float(max(count, 1)), "sqrtn": max(count, 1) ** 0.5}[combiner]


def embed(rows: list[list[int]], table: np.ndarray, combiner: str) -> np.ndarray:
    out = np.zeros((len(rows), table.shape[1]))
    for r, ids in enumerate(rows):
        for i in ids:
            out[r] += table[i] / divisor(len(ids), combiner)
    return out


def embed_grad(
    rows: list[list[int]], table: np.ndarray, combiner: str, up: np.ndarray
) -> np.ndarray:
    grad = np.zeros_like(table)
    for r, ids in enumerate(rows):
        for i in ids:
            grad[i] += up[r] / divisor(len(ids), combiner)
    return grad


def indicate(rows: list[list[int]], size: int) -> np.ndarray:
    out = np.zeros((len(rows), size))
    for r, ids in enumerate(rows):
        for i in ids:
            out[r, i] += 1
    return out


def buckets(numbers: np.ndarray, boundaries: tuple[float, ...]) -> list[list[int]]:
    """Ids of a ``(N, k)`` array: place ``p`` has ids from ``p * (len(boundaries) + 1)`` on."""
    step = len(boundaries) + 1
    return [
        [p * step + sum(x >= b for b in boundaries) for p, x in enumerate(row)] for row in numbers
    ]


def pairs(fields: int, self_interaction: bool) -> list[tuple[int, int]]:
    first = 0 if self_interaction else 1
    return [(i, j) for i in range(fields) for j in range(i + first, fields)]


def matrix_of(kind: str, kernel: np.ndarray, i: int, p: int) -> np.ndarray:
    if kind == "field_all":
        return kernel
    return kernel.reshape(-1, *kernel.shape[-2:])[i if kind == "field_each" else p]


def dots(x: np.ndarray, kind: str | None, kernel: np.ndarray | None, both: bool) -> np.ndarray:
    found = pairs(x.shape[1], both)
    out = np.zeros((len(x), len(found)))
    for n, row in enumerate(x):
        for p, (i, j) in enumerate(found):
            w = np.eye(x.shape[2]) if kind is None else matrix_of(kind, kernel, i, p)
            out[n, p] = row[i] @ w @ row[j]
    return out


def dots_grad(
    x: np.ndarray, kind: str | None, kernel: np.ndarray | None, both: bool, up: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Gradients of the inputs and of the kernel."""
    of_x = np.zeros_like(x)
    of_kernel = None if kernel is None else np.zeros_like(kernel)
    for n, row in enumerate(x):
        for p, (i, j) in enumerate(pairs(x.shape[1], both)):
            w = np.eye(x.shape[2]) if kind is None else matrix_of(kind, kernel, i, p)
            of_x[n, i] += up[n, p] * (w @ row[j])
            of_x[n, j] += up[n, p] * (w.T @ row[i])
            if of_kernel is not None:
                matrix_of(kind, of_kernel, i, p)[...] += up[n, p] * np.outer(row[i], row[j])
    return of_x, of_kernel


def outer(x0: np.ndarray, xk: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    out = np.zeros((len(x0), kernel.shape[0], x0.shape[2]))
    for n in range(len(x0)):
        for h in range(kernel.shape[0]):
            for i in range(xk.shape[1]):
                for j in range(x0.shape[1]):
                    out[n, h] += kernel[h, i, j] * xk[n, i] * x0[n, j]
    return out


def outer_grad(
    x0: np.ndarray, xk: np.ndarray, kernel: np.ndarray, up: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of x0, xk and the kernel."""
    of_0, of_k, of_w = np.zeros_like(x0), np.zeros_like(xk), np.zeros_like(kernel)
    for n in range(len(x0)):
        for h in range(kernel.shape[0]):
            for i in range(xk.shape[1]):
                for j in range(x0.shape[1]):
                    of_w[h, i, j] += np.sum(up[n, h] * xk[n, i] * x0[n, j])
                    of_k[n, i] += kernel[h, i, j] * up[n, h] * x0[n, j]
                    of_0[n, j] += kernel[h, i, j] * up[n, h] * xk[n, i]
    return of_0, of_k, of_w
