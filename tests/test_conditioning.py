"""Condition numbers: products against all eigenvalues and against differences, and what is refused (see T05)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.measure.conditioning import conditioning, dense_spectrum, krylov_spectrum
from fedslice.models import SparseLogistic
from fedslice.task import Task
from toys import MLP, classifier, double, index_set, mlp, recommender, samples_of, squared

HERE = "fedslice.measure.conditioning"


@pytest.fixture
def float64() -> Iterator[None]:
    with double():
        yield


# --- the two ways to a spectrum -----------------------------------------------------------------------------------


def with_spectrum(values: Tensor, scale: Tensor) -> Tensor:
    """A symmetric matrix C·Q·diag(values)·Qᵀ·C, which is badly scaled unless C = diag(scale) is even."""
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64))[0]
    return scale[:, None] * (basis * values @ basis.T) * scale


@pytest.mark.parametrize("dispersion", [1.0, 1e4])
def test_products_lead_to_the_ends_of_the_spectrum(dispersion: float) -> None:
    heat = torch.logspace(0, -np.log10(dispersion), 150, dtype=torch.float64)
    matrix = with_spectrum(torch.linspace(1, 3, 150, dtype=torch.float64), heat.sqrt())
    exact = dense_spectrum(matrix, 1e-8)
    found = krylov_spectrum(lambda v: matrix @ v, 1 / heat, 1e-8)
    for name in ("sigma_max", "sigma_min", "eigenvalue_min", "kappa"):
        assert found[name] == pytest.approx(exact[name], rel=1e-3 if dispersion > 1 else 1e-6), name
    assert (found["kappa_is"], exact["kappa_is"]) == ("converged", "exact")
    assert max(found["residual_max"], found["residual_min"]) < 2e-7
    assert found["products_max"] < 150
    assert found["products_min"] < 150, "heat is the preconditioner"


def test_a_search_that_ends_early_gives_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HERE}._PRODUCTS", 3)
    matrix = with_spectrum(torch.logspace(-4, 0, 150, dtype=torch.float64), torch.ones(150, dtype=torch.float64))
    exact, found = (
        dense_spectrum(matrix, 1e-8),
        krylov_spectrum(lambda v: matrix @ v, torch.ones(150, dtype=torch.float64), 1e-8),
    )
    assert found["kappa_is"] == "lower bound"
    assert 2 * found["kappa"] < exact["kappa"]
    assert found["products_min"] < 10


@pytest.mark.parametrize(
    ("lowest", "sigma_min", "below"),
    [(0.0, 0.5, 3), (-1.0, 0.5, 0), (-0.1, 0.1, 0)],
    ids=["singular", "indefinite", "near"],
)
def test_what_lies_inside_the_spectrum_is_known_only_from_all_of_it(
    lowest: float, sigma_min: float, below: int
) -> None:
    values = torch.cat([torch.full((3,), lowest), torch.linspace(0.5, 2, 147)]).double()
    matrix = with_spectrum(values, torch.ones(150, dtype=torch.float64))
    exact = dense_spectrum(matrix, 1e-8)
    assert exact["sigma_min"] == pytest.approx(sigma_min)
    assert exact["kappa"] == pytest.approx(2 / sigma_min)
    assert exact["below"] == below
    found = krylov_spectrum(lambda v: matrix @ v, torch.ones(150, dtype=torch.float64), 1e-8)
    assert found["kappa_is"] == "unknown"
    assert found["kappa"] is found["sigma_min"] is found["below"] is None
    for one in (exact, found):
        assert one["sigma_max"] == pytest.approx(2)
        assert one["eigenvalue_min"] == pytest.approx(lowest, abs=1e-8)


def test_the_largest_singular_value_may_be_a_negative_eigenvalue() -> None:
    matrix = with_spectrum(torch.linspace(-5, 2, 150, dtype=torch.float64), torch.ones(150, dtype=torch.float64))
    found = krylov_spectrum(lambda v: matrix @ v, torch.ones(150, dtype=torch.float64), 1e-8)
    assert found["sigma_max"] == pytest.approx(5)
    assert found["eigenvalue_min"] == pytest.approx(-5)


# --- Hessians of tasks --------------------------------------------------------------------------------------------


def plain_hessian(task: Task) -> tuple[Tensor, Tensor]:
    """∇²f of the whole model as one matrix, clients one at a time, and the heat of every coordinate."""
    start, train, clients = task.initial(0), task.federation.train, len(task.federation)
    sizes = [value.numel() for value in start.values()]

    def objective(flat: Tensor) -> Tensor:
        parts = zip(start.items(), flat.split(sizes), strict=True)
        model = {name: part.view(value.shape) for (name, value), part in parts}
        total = torch.zeros(())
        for client in range(clients):
            features, label = train.batch(torch.tensor(samples_of(train, client)))
            total = total + task.loss(functional_call(task.module, model, kwargs=features), label).mean() / clients
        return total

    heat = []
    for name, value in start.items():
        rows = [clients] * (len(value))
        if name in task.tables:
            rows = [sum(m in index_set(task, name, c) for c in range(clients)) for m in range(len(value))]
        heat.append(torch.tensor(rows).repeat_interleave(value[0].numel()))
    flat = torch.cat([value.detach().flatten() for value in start.values()])
    return torch.autograd.functional.hessian(objective, flat), torch.cat(heat)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("name", ["recommender", "mlp"])
def test_both_hessians_are_those_of_plain_differentiation(name: str, ridge: float) -> None:
    """With a ridge of every client over its own coordinates: H + λ·diag(n_m/N) and Ĥ + λ·I."""
    task = recommender(items=20) if name == "recommender" else mlp()
    matrix, heat = plain_hessian(task)
    held = heat > 0
    root = (len(task.federation) / heat[held]).sqrt()
    matrix = matrix[held][:, held]
    scaled = root[:, None] * matrix * root + ridge * torch.eye(len(root))
    found = conditioning(task, task.initial(0), ridge=ridge)
    assert found["method"] == "all eigenvalues"
    assert found["products"] == "double backward"
    assert found["product_check"] < 1e-7
    assert found["coordinates"] == int(held.sum())
    assert found["coordinates_left_out"] == int((~held).sum())
    for key, expected in {"hessian": matrix + (ridge / root**2).diag(), "preconditioned": scaled}.items():
        values = torch.linalg.eigvalsh(expected)
        assert found[key]["sigma_max"] == pytest.approx(float(values.abs().max()), rel=1e-9)
        assert found[key]["eigenvalue_min"] == pytest.approx(float(values[0]), rel=1e-7, abs=1e-12)
        assert found[key]["below"] == int((values.abs() <= 1e-8 * values.abs().max()).sum())


def one_hot(ridge_rows: int = 6) -> Task:
    """Logistic regression on two one-hot fields: both sum to one, so that one direction is free."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(8), 6)
    ids = np.stack([draw.integers(0, 3, 48), 3 + draw.integers(0, ridge_rows - 3, 48)], 1)
    ids[:3], ids[3:6] = [[0, 3], [1, 3], [2, 3]], [[0, 4], [0, 5], [1, 4]]
    data = Federation.from_arrays(
        client=client, features={"ids": ids}, label=draw.integers(0, 2, 48).astype(float), test=0.0
    )
    loss = nn.BCEWithLogitsLoss(reduction="none")
    return Task(data, lambda: SparseLogistic(ridge_rows + 1), loss, tables={"table.weight": "ids"})


@pytest.mark.parametrize("dense", [True, False])
def test_collinear_features_make_a_singular_hessian_and_a_ridge_mends_it(
    dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One direction is free, and one row is nobody's; with the ridge the smallest eigenvalue of Ĥ is λ."""
    task = one_hot()
    start = task.initial(0)
    if not dense:
        monkeypatch.setattr(f"{HERE}.DENSE", 0)
        monkeypatch.setattr(f"{HERE}._LANCZOS_BASIS", 5)
    bare, mended = conditioning(task, start), conditioning(task, start, ridge=0.05)
    assert (bare["coordinates"], bare["coordinates_left_out"]) == (6, 1)
    assert bare["method"] == ("all eigenvalues" if dense else "Lanczos and LOBPCG")
    for key in ("hessian", "preconditioned"):
        assert bare[key]["eigenvalue_min"] == pytest.approx(0, abs=1e-10)
        assert bare[key]["below"] == (1 if dense else None)
        assert (bare[key]["kappa"] is None) == (not dense)
        assert mended[key]["eigenvalue_min"] == mended[key]["sigma_min"] > 0
        assert mended[key]["kappa"] == mended[key]["sigma_max"] / mended[key]["sigma_min"]
    assert mended["preconditioned"]["sigma_min"] == pytest.approx(0.05, rel=1e-9)
    assert mended["preconditioned"]["sigma_max"] == pytest.approx(bare["preconditioned"]["sigma_max"] + 0.05, rel=1e-9)


def test_products_and_all_eigenvalues_agree_on_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    task = recommender(ragged=False)
    start = task.initial(0)
    exact = conditioning(task, start, ridge=2.0)
    monkeypatch.setattr(f"{HERE}.DENSE", 0)
    found = conditioning(task, start, ridge=2.0)
    for key in ("hessian", "preconditioned"):
        for name in ("sigma_max", "eigenvalue_min"):
            assert found[key][name] == pytest.approx(exact[key][name], rel=1e-5), (key, name)


def test_a_task_in_single_precision_is_measured_in_double_and_stays_as_it_is() -> None:
    """Frozen parameters and buffers, which the module keeps to itself, are widened too."""

    class Frozen(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.first.weight.requires_grad_(False)
            self.register_buffer("shift", torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return self.second((self.first(x) + nn.functional.linear(self.shift, torch.eye(6).to(self.shift))).tanh())

    task = classifier(Frozen())
    found = conditioning(task, task.initial(0), ridge=0.1)
    assert found["product_check"] < 1e-7, "single precision would give about 1e-3"
    assert all(value.dtype == torch.float32 for value in task.module.state_dict().values())
    assert found["coordinates"] == sum(shape.numel() for shape in task.shapes.values()) == 6 + 21


# --- backward passes that have no derivative ----------------------------------------------------------------------


class Cubed(torch.autograd.Function):
    """x³ with a backward that cannot be differentiated, and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grad


class Silent(Cubed):
    """The same, and does not say so."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0].detach() ** 2 * grad


class Constant(Cubed):
    """Tells nothing of how the gradient changes with anything."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return (3 * ctx.saved_tensors[0] ** 2 * grad).detach()


class Cubes(nn.Module):
    """A function of a line, beside which the line may stand itself."""

    def __init__(self, cube: Any, beside: float) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.cube = cube
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        y = self.line(x).squeeze(-1)
        return self.cube(y) + self.beside * y


def cubes(cube: Any, beside: float = 0.0) -> Task:
    draw = np.random.default_rng(0)
    data = Federation.from_arrays(
        client=np.arange(12) % 3, features={"x": draw.normal(size=(12, 4))}, label=draw.normal(size=12), test=0.0
    )
    torch.manual_seed(0)
    return Task(data, Cubes(cube, beside), squared)


@pytest.mark.parametrize(("function", "beside"), [(Cubed, 0.0), (Cubed, 1.0), (Constant, 0.0)])
def test_differences_stand_in_where_double_backward_fails(function: type[Cubed], beside: float) -> None:
    plain, broken = cubes(lambda x: x**3, beside), cubes(function.apply, beside)
    expected, found = (conditioning(task, task.initial(0)) for task in (plain, broken))
    assert (expected["products"], found["products"]) == ("double backward", "central differences")
    assert found["product_check"] is None
    for key in ("hessian", "preconditioned"):
        for name in ("sigma_max", "sigma_min", "eigenvalue_min", "kappa"):
            assert found[key][name] == pytest.approx(expected[key][name], rel=1e-4, abs=1e-8)


def test_a_backward_that_hides_its_lack_of_a_derivative_shows_in_the_check() -> None:
    task = cubes(Silent.apply)
    assert conditioning(task, task.initial(0))["product_check"] > 0.01
    plain = cubes(lambda x: x**3)
    assert conditioning(plain, plain.initial(0))["product_check"] < 1e-7


# --- refusals -----------------------------------------------------------------------------------------------------


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = one_hot()
    start = task.initial(0)
    with pytest.raises(UserError, match="ridge=-1"):
        conditioning(task, start, ridge=-1)
    with pytest.raises(UserError, match="ridge=nan"):
        conditioning(task, start, ridge=float("nan"))
    with pytest.raises(UserError, match="tolerance=0"):
        conditioning(task, start, tolerance=0)
    with pytest.raises(UserError, match="not finite"):
        conditioning(task, {"table.weight": start["table.weight"] * float("nan")})
    monkeypatch.setattr(f"{HERE}.MOST", 5)
    with pytest.raises(UserError, match=r"6 coordinates x 20 vectors x 8 bytes .* over 48 samples"):
        conditioning(task, start)


def test_a_linear_objective_has_no_condition_number() -> None:
    task = one_hot()
    linear = Task(task.federation, task.model, lambda out, label: out * label, tables=task.tables)
    with pytest.raises(UserError, match="is zero"):
        conditioning(linear, linear.initial(0))
