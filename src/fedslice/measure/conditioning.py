"""Condition number of the global objective, as it stands and as FedSubAvg sees it (FedSubAvg, theorems 1 and 2).

H = ∇²f at a model, and Ĥ = D^{1/2}·H·D^{1/2} with D = diag(N/n_m). Everything is computed in float64. H is never built
for a large task: its largest eigenvalue comes from Lanczos and its smallest from LOBPCG, both of which need products
with H only. LOBPCG takes D as its preconditioner, which for H is what theorem 2 promises it to be.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.core.slice import Values
from fedslice.data.samples import Samples
from fedslice.measure.gradients import block_objective, blocks, full_gradient
from fedslice.measure.heat import corrections
from fedslice.task import Task, evaluating

DENSE = 1_000  # coordinates up to which all eigenvalues are computed
MOST = 200_000  # coordinates beyond which a measurement is refused
_PRODUCTS = 1_000  # with which LOBPCG looks for the smallest eigenvalue, at most
_LANCZOS_BASIS = 20  # vectors that Lanczos keeps
_RESIDUAL = 1e-7  # of an eigenvector, relative to the largest eigenvalue, at which a search ends
_CONVERGED = 0.01  # residual relative to the eigenvalue itself, up to which it counts as found

Vector = NDArray[np.float64]
Product = Callable[[Tensor], Tensor]


def conditioning(task: Task, model: Values, *, ridge: float = 0.0, tolerance: float = 1e-8) -> dict[str, Any]:
    """Condition numbers of H (``hessian``) and Ĥ (``preconditioned``) at a model, and how they were found.

    Coordinates that nobody holds are left out. ``eigenvalue_min`` is the smallest eigenvalue, which tells of a singular
    or indefinite Hessian; ``sigma_min`` is the smallest singular value above ``tolerance`` · ``sigma_max``, and
    ``kappa`` = ``sigma_max`` / ``sigma_min``. ``below`` counts the singular values left out, where all are known.
    ``kappa_is`` says what the number is worth:

    * ``exact``: from all eigenvalues;
    * ``converged``: the smallest eigenvalue found has a residual within 1% of it;
    * ``lower bound``: the search ended before that, and a true eigenvalue may lie below the value found;
    * ``unknown``: the Hessian is singular or indefinite, so that the value sought lies inside the spectrum, where
      products with vectors do not lead; ``sigma_min`` and ``kappa`` are then ``None``.

    ``ridge`` λ adds λ/2·‖x‖² to every client's loss over the coordinates that this client holds: λ·n_m/N per coordinate
    of H, and λ on the whole diagonal of Ĥ. Each client's own Hessian then has eigenvalues of at least λ where its loss
    is convex, which is what assumption 1 asks for (ρ1 = λ). A term over the whole model, λ on the diagonal of H, would
    be another objective, with λ·N/n_m in Ĥ, to which theorem 2 does not apply.

    ``product_check`` is the relative difference of a product with H from a central difference of gradients along the
    same random direction; far from zero, the model's backward pass is not differentiable itself, or has kinks here.
    ``products`` says which of the two was used; where only differences are to be had, the check is ``None``.
    """
    if not 0 <= ridge < np.inf:
        raise UserError(f"ridge={ridge}; give zero or a positive number.")
    if not 0 < tolerance < 1:
        raise UserError(f"tolerance={tolerance}; give a number between 0 and 1.")
    frame = _Frame(task)
    if frame.size > MOST:
        raise UserError(
            f"task {task.name!r} has {frame.size:,} coordinates that somebody holds, and conditioning takes up to "
            f"{MOST:,}: {frame.size:,} coordinates x {_LANCZOS_BASIS} vectors x 8 bytes = "
            f"{frame.size * _LANCZOS_BASIS * 8 / 1e6:,.0f} MB, and hundreds of passes over "
            f"{len(task.federation.train):,} samples; give a smaller task."
        )
    wide = _double(task)
    if task.statistics:
        raise UserError(
            f"task {task.name!r} has running statistics, as {min(task.statistics)!r}, which are no part of a Hessian; "
            "use GroupNorm."
        )
    point = {name: value.detach().cpu().double() for name, value in model.items()}
    product, how, check = _product(wide, point, frame)
    diagonal = ridge / frame.correction
    root = frame.correction.sqrt()
    found: dict[str, Any] = {
        "task": task.name,
        "clients": len(task.federation),
        "coordinates": frame.size,
        "coordinates_left_out": frame.left_out,
        "heat_max": round(len(task.federation) / float(frame.correction.min())),
        "heat_min": round(len(task.federation) / float(frame.correction.max())),
        "ridge": ridge,
        "tolerance": tolerance,
        "products": how,
        "product_check": check,
    }
    if frame.size <= DENSE:
        matrix = torch.stack([product(unit) for unit in torch.eye(frame.size, dtype=torch.float64)])
        matrix = (matrix + matrix.T) / 2 + diagonal.diag()
        plain = dense_spectrum(matrix, tolerance)
        scaled = dense_spectrum(root[:, None] * matrix * root, tolerance)
        method = "all eigenvalues"
    else:
        plain = krylov_spectrum(lambda v: product(v) + diagonal * v, frame.correction, tolerance)
        scaled = krylov_spectrum(lambda v: root * product(root * v) + ridge * v, torch.ones_like(root), tolerance)
        method = "Lanczos and LOBPCG"
    return found | {"method": method, "hessian": plain, "preconditioned": scaled}


def dense_spectrum(matrix: Tensor, tolerance: float) -> dict[str, Any]:
    """The figures of one symmetric matrix, from all its eigenvalues; singular values as the paper's κ has them."""
    values = torch.linalg.eigvalsh(matrix)
    sigma = values.abs()
    largest = float(sigma.max())
    above = sigma[sigma > tolerance * largest]
    return _figures(largest, float(values[0]), float(above.min()), "exact") | {"below": len(sigma) - len(above)}


def krylov_spectrum(product: Product, preconditioner: Tensor, tolerance: float) -> dict[str, Any]:
    """The figures of one symmetric matrix of which only products with vectors are to be had.

    The value found for the smallest eigenvalue is a Rayleigh quotient and so never below the true one.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh, lobpcg

    size, count = len(preconditioner), 0

    def times(columns: Vector) -> Vector:
        nonlocal count
        parts = [product(torch.from_numpy(column)).numpy() for column in columns.reshape(size, -1).T.copy()]
        count += len(parts)
        return np.stack(parts, axis=1).reshape(columns.shape)

    matrix = LinearOperator((size, size), matvec=times, matmat=times, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=(size, 2))
    tops, vectors = eigsh(matrix, k=1, which="LM", v0=start[:, 0], ncv=_LANCZOS_BASIS, tol=_RESIDUAL)
    largest = abs(float(tops[0]))
    residual_max = float(np.linalg.norm(times(vectors[:, 0]) - tops[0] * vectors[:, 0])) / largest
    lanczos = count
    scale = preconditioner.numpy()[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it did not converge, which the residual tells
        _, vectors = lobpcg(
            matrix,
            start[:, 1:],
            M=lambda columns: scale * columns.reshape(size, -1),
            largest=False,
            tol=_RESIDUAL * largest,
            maxiter=_PRODUCTS,
        )
    vector = vectors[:, 0] / np.linalg.norm(vectors[:, 0])
    image = times(vector)
    smallest = float(vector @ image)
    error = float(np.linalg.norm(image - smallest * vector))
    if smallest <= tolerance * largest:
        figures = _figures(largest, smallest, None, "unknown")
    else:
        figures = _figures(
            largest, smallest, smallest, "converged" if error <= _CONVERGED * smallest else "lower bound"
        )
    return figures | {
        "below": None,
        "residual_max": residual_max,
        "residual_min": error / largest,
        "products_max": lanczos,
        "products_min": count - lanczos,
    }


def _figures(largest: float, lowest: float, smallest: float | None, worth: str) -> dict[str, Any]:
    return {
        "sigma_max": largest,
        "sigma_min": smallest,
        "eigenvalue_min": lowest,
        "kappa": None if smallest is None else largest / smallest,
        "kappa_is": worth,
    }


class _Frame:
    """The coordinates that somebody holds, as one vector: parameters in their order, rows that nobody holds left out.

    ``correction`` is N/n_m of every coordinate.
    """

    def __init__(self, task: Task):
        factor = corrections(task)
        self._shapes = task.shapes
        self._rows = {name: value.nonzero()[:, 0] for name, value in factor.items()}
        parts = []
        for name, shape in task.shapes.items():
            if name in factor:
                parts.append(factor[name][self._rows[name]].repeat_interleave(shape[1:].numel()))
            else:
                parts.append(torch.ones(shape.numel(), dtype=torch.float64))
        self.correction = torch.cat(parts)
        self.size = len(self.correction)
        self.left_out = sum(shape.numel() for shape in task.shapes.values()) - self.size
        self._parts = [len(part) for part in parts]

    def pack(self, values: Values) -> Tensor:
        """A vector from values of the whole model."""
        return torch.cat([self._held(name, values[name]).flatten() for name in self._shapes])

    def unpack(self, vector: Tensor) -> Values:
        """Values of the whole model, zero where nobody holds anything."""
        out = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in self._shapes.items()}
        for (name, value), part in zip(out.items(), vector.split(self._parts), strict=True):
            if name in self._rows:
                value[self._rows[name]] = part.view(-1, *value.shape[1:])
            else:
                value.copy_(part.view(value.shape))
        return out

    def _held(self, name: str, value: Tensor) -> Tensor:
        return value[self._rows[name]] if name in self._rows else value


def _product(task: Task, point: Values, frame: _Frame) -> tuple[Product, str, float | None]:
    """v ↦ H·v, how it is computed, and how far it is from a central difference along a random direction."""
    direction = torch.from_numpy(np.random.default_rng(1).normal(size=frame.size))
    expected = _difference(task, point, frame, direction)
    if not bool(torch.isfinite(expected).all()):
        raise UserError(f"the Hessian of task {task.name!r} at this model is not finite; give an earlier model.")
    if not bool(expected.any()):
        raise UserError(f"the Hessian of task {task.name!r} at this model is zero; it has no condition number.")
    try:
        found = _second_derivative(task, point, frame, direction)
    except RuntimeError:  # a backward pass that has no derivative of its own
        found = torch.zeros(())
    if not bool(found.any()):  # or has one of zero, where gradients do change
        return lambda vector: _difference(task, point, frame, vector), "central differences", None
    check = float((found - expected).norm() / expected.norm())
    return lambda vector: _second_derivative(task, point, frame, vector), "double backward", check


def _second_derivative(task: Task, point: Values, frame: _Frame, vector: Tensor) -> Tensor:
    """H·v as the gradient of ∇f·v.

    The second pass goes through the whole graph: asked for some inputs only, it would go around a function whose
    derivative raises, and leave its part out.
    """
    along = list(frame.unpack(vector).values())
    leaves = {name: point[name].clone().requires_grad_() for name in task.shapes}
    with evaluating(task.module):
        for block in blocks(task):
            objective = block_objective(task, leaves, block)
            slopes = torch.autograd.grad(
                objective, list(leaves.values()), create_graph=True, materialize_grads=True, allow_unused=True
            )
            slope = torch.stack([(g * v).sum() for g, v in zip(slopes, along, strict=True)]).sum()
            if slope.requires_grad:  # else the block's losses are linear in every parameter
                torch.autograd.backward(slope)
    return frame.pack({n: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for n, leaf in leaves.items()})


def _difference(task: Task, point: Values, frame: _Frame, vector: Tensor) -> Tensor:
    """H·v as a central difference of exact gradients; the step balances truncation against rounding."""
    here = frame.pack(point)
    step = np.finfo(np.float64).eps ** (1 / 3) * (1 + float(here.abs().max())) / float(vector.abs().max())
    moved = frame.unpack(step * vector)
    sides = []
    for sign in (1, -1):
        beside = {name: point[name] + sign * moved[name] for name in task.shapes}
        sides.append(frame.pack(full_gradient(task, beside)))
    return (sides[0] - sides[1]) / (2 * step)


def _double(task: Task) -> Task:
    """The same task in float64 on the CPU."""
    model = task.model
    wide = copy.deepcopy(model).cpu().double() if isinstance(model, nn.Module) else lambda: model().cpu().double()
    data = task.federation
    return replace(task, federation=replace(data, train=_widened(data.train), test=_widened(data.test)), model=wide)


def _widened(samples: Samples) -> Samples:
    """Numbers as float64; ids stay as they are."""
    samples = samples.to(torch.device("cpu"))
    features = {
        name: column.double() if isinstance(column, Tensor) and column.is_floating_point() else column
        for name, column in samples.features.items()
    }
    label = samples.label.double() if samples.label.is_floating_point() else samples.label
    return Samples(features, label, samples.offsets)
