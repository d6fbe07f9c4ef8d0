"""Features before the last layer: against the layers called by hand, and as files of a finished run."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from command import fedslice
from fedslice.core.errors import UserError
from fedslice.data.federation import Federation
from fedslice.measure.features import features, tsne
from fedslice.task import Loss, Task
from toys import MLP, squared

SIZES = ("--set", "train=240", "clients=6", "split=pfllib", "model=mlp", "epochs=1")
ENTROPY = nn.CrossEntropyLoss(reduction="none")
NO_SKLEARN = "scikit-learn, which the extra tsne brings, is not installed"


def task(module: nn.Module, held_out: Any, loss: Loss = ENTROPY) -> Task:
    """Twelve samples of clients a, b and c."""
    draw = np.random.default_rng(0)
    federation = Federation.from_arrays(
        client=np.array(list("abc") * 4),
        features={"x": draw.normal(size=(12, 4))},
        label=draw.integers(0, 3, 12),
        test=held_out,
    )
    return Task(federation, module, loss, eval_batch=4)


def owned_by(*names: str) -> Any:
    """Of each of these clients the first half is held out, or all of it if the name is large."""
    return np.array([(n in names and place < 6) or n.upper() in names for place, n in enumerate("abc" * 4)])


def test_they_are_what_enters_the_last_layer_and_lead_to_the_prediction() -> None:
    module = MLP()
    one = task(module, np.arange(12) >= 3)
    found = features(one, one.initial(0), 100, 0)
    x = one.federation.test.features["x"]
    assert isinstance(x, torch.Tensor)
    torch.testing.assert_close(found.values, module.first(x).tanh().detach())
    assert torch.equal(found.predicted, module.second(found.values).argmax(1))
    assert torch.equal(found.label, one.federation.test.label)
    assert found.client == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_a_sample_of_nobody_who_trains_has_no_client() -> None:
    one = task(MLP(), owned_by("a", "C"))
    assert features(one, one.initial(0), 100, 0).client == ["a", "a", *[None] * 4]


def test_a_single_logit_is_thresholded() -> None:
    class Logit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 1, bias=False)
            nn.init.ones_(self.out.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x).squeeze(-1)

    one = task(Logit(), np.arange(12) >= 3, squared)
    found = features(one, one.initial(0), 100, 0)
    assert found.predicted.tolist() == (found.values.sum(1) > 0).long().tolist()
    assert set(found.predicted.tolist()) == {0, 1}


def test_the_draw_is_the_seeds() -> None:
    one = task(MLP(), np.arange(12) >= 3)
    model, every = one.initial(0), features(one, one.initial(0), 9, 0).values
    draws = [features(one, model, 5, seed).values for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    places = [[int((row == every).all(1).nonzero()) for row in draw] for draw in draws]
    assert all(found == sorted(set(found)) for found in places), "each once, in their order"


class Alone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :3] * self.scale


class Wide(nn.Module):
    """Its last layer sees four rows of every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x[..., None]).sum(-2)


@pytest.mark.parametrize(
    ("module", "held_out", "words"),
    [
        (Alone(), owned_by("a"), "Alone has no Linear layer of its own"),
        (Wide(), owned_by("a"), "enters the last Linear layer 'out' has the shape (4, 1) for each sample"),
        (MLP(), 0.0, "has no test samples"),
    ],
)
def test_what_has_no_features_is_refused(module: nn.Module, held_out: Any, words: str) -> None:
    one = task(module, held_out)
    with pytest.raises(UserError) as caught:
        features(one, one.initial(0), 5, 0)
    assert words in str(caught.value)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "run"
    done = fedslice("run", "mnist", "--rounds", 2, "--eval-every", 2, "--cohort", 3, "--out", place, *SIZES)
    assert done.code == 0, done.err
    return place


@pytest.fixture
def run(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def mapper(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """In the place of scikit-learn's class one that takes what is documented, and maps to the first two features."""
    made: list[dict[str, Any]] = []

    class TSNE:
        def __init__(self, n_components: int = 2, *, perplexity: float, init: str, random_state: int) -> None:
            made.append({"components": n_components, "perplexity": perplexity, "init": init, "seed": random_state})

        def fit_transform(self, values: Any) -> Any:
            assert made[-1]["perplexity"] < len(values)
            return values[:, :2]

    package, manifold = ModuleType("sklearn"), ModuleType("sklearn.manifold")
    manifold.TSNE = TSNE  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sklearn", package)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", manifold)
    return made


def written(place: Path) -> set[str]:
    return {entry.name for entry in place.iterdir()} - {"run"}


def test_the_file_holds_the_final_model(run: Path, tmp_path: Path) -> None:
    done = fedslice("features", run, "-o", "all.csv")
    assert (done.code, done.err) == (0, "features: all.csv\n")
    table = pl.read_csv(tmp_path / "all.csv")
    assert table.columns == ["client", "label", "predicted", *(f"feature_{place}" for place in range(64))]
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert (table["label"] == table["predicted"]).mean() == pytest.approx(last["test_accuracy"])
    assert set(table["client"]) == set(range(6))
    fedslice("features", run, "-o", "some.csv", "--samples", 10)
    some = pl.read_csv(tmp_path / "some.csv")
    assert len(some) == 10
    assert len(some.join(table, on=table.columns, how="semi")) == 10, "ten of them"


def test_a_map_has_two_columns_more_and_a_picture(run: Path, tmp_path: Path, mapper: list[dict[str, Any]]) -> None:
    for kind, begin in (("svg", b"<svg"), ("png", b"\x89PNG"), ("html", b"<!DOCTYPE html>")):
        done = fedslice("features", run, "-o", "map.csv", "--tsne", "--chart", f"map.{kind}", "--samples", 40)
        assert (done.code, done.err) == (0, f"features: map.csv\nchart: map.{kind}\n")
        assert (tmp_path / f"map.{kind}").read_bytes().lstrip().startswith(begin)
    table = pl.read_csv(tmp_path / "map.csv")
    assert table.columns[-2:] == ["tsne_1", "tsne_2"]
    assert table["tsne_2"].to_list() == table["feature_1"].to_list()
    assert mapper == [{"components": 2, "perplexity": 13, "init": "pca", "seed": 0}] * 3
    picture = (tmp_path / "map.svg").read_text()
    assert "features by class" in picture
    assert all(f">{label}</text>" in picture for label in set(table["label"])), "the legend names the classes"
    page = (tmp_path / "map.html").read_text()
    assert not re.search(r"<(script|link)[^>]+(src|href)=(?!\"data:,\")", page), "it needs no network"


def test_scikit_learn_maps_clusters_apart() -> None:
    pytest.importorskip("sklearn", reason=NO_SKLEARN)
    values = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    values[30:] += 50
    places = tsne(values, 3)
    assert places.shape == (60, 2)
    assert np.array_equal(places, tsne(values, 3))
    far = np.linalg.norm(places[:30].mean(0) - places[30:].mean(0))
    assert far > 2 * np.linalg.norm(places[:30] - places[:30].mean(0), axis=1).mean()


def test_without_the_package_one_sentence_names_the_extra(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    done = fedslice("features", run, "--tsne")
    assert done.code == 2
    assert (
        done.err == "fedslice: --tsne needs scikit-learn; install it with the extra (pip install 'fedslice[tsne]').\n"
    )


@pytest.mark.usefixtures("mapper")
def test_a_map_of_next_to_nothing_or_of_infinities_is_refused() -> None:
    for values, words in ((torch.ones(2, 5), "2 samples of 5 features"), (torch.full((9, 2), torch.inf), "not finite")):
        with pytest.raises(UserError, match=words):
            tsne(values, 0)


@pytest.mark.usefixtures("mapper")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "nowhere holds no run (no config.json)"),
        (("run", "-o", "run"), "run is a directory, expected the name of a file"),
        (("run", "-o", "no/where.csv"), "--out no/where.csv: the folder no does not exist; make it first"),
        (("run", "--chart", "map.svg"), "--chart map.svg draws the map that --tsne makes; add --tsne."),
        (("run", "--tsne", "--chart", "map.pdf"), "ends in 'pdf', expected html, svg or png"),
        (("run", "--tsne", "--chart", "no/map.svg"), "--chart no/map.svg: the folder no does not exist"),
        (("run", "--tsne", "--chart", "a.svg", "-o", "a.svg"), "--chart and --out are both a.svg"),
        (("run", "--tsne", "--chart", "a.svg", "--samples", 20_001), "more points than the 20000 of a --chart"),
        (("run", "--samples", 0), "'--samples': Input should be greater than or equal to 1"),
        (("run", "--data", "elsewhere"), "elsewhere"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    run: Path, tmp_path: Path, words: tuple[object, ...], said: str
) -> None:
    done = fedslice("features", *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert written(tmp_path) == set()


def test_a_run_without_a_fitting_final_model_is_refused(run: Path, tmp_path: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    for change, said in (
        ({"model": "cnn1"}, 'model mlp", found "generated in the shape of MNIST'),
        (
            {"model": "cnn1", "source": config["task"]["source"].replace("mlp", "cnn1")},
            "parameter 'classes.weight' has shape (10, 64) in the checkpoint, expected (10, 50)",
        ),
        ({"color": "red"}, "unknown setting 'color'"),
    ):
        (run / "config.json").write_text(json.dumps(config | {"task": config["task"] | change}))
        done = fedslice("features", run)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert said in done.err
    (run / "config.json").write_text(json.dumps(config))
    (run / "checkpoint.safetensors").unlink()
    assert "has no final model (its checkpoint is gone)" in fedslice("features", run).err
    (run / "finished.json").unlink()
    done = fedslice("features", run)
    assert done.code == 2
    assert "has no final model (it has not ended); finish the run with --resume" in done.err
    assert written(tmp_path) == set()


def test_it_finds_the_data_of_a_run_in_its_command(run: Path) -> None:
    (run / "origin.json").write_text(json.dumps({"command": "fedslice run mnist --data 'no where' --rounds 2"}))
    assert "no where is not a folder, expected the one that holds MNIST" in fedslice("features", run).err
    (run / "origin.json").write_text(json.dumps({"command": "no 'command"}))
    assert fedslice("features", run).code == 0
