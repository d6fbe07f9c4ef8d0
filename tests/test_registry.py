"""Parts of users: how they are found, what is checked of them, and that runs with them are like any other."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import fedslice as package
from command import SMALL, Done, fedslice
from fedslice import registry
from fedslice.codecs import Codec, Dense, Sign, StreamingSubspace
from fedslice.combine import Combine, Mean
from fedslice.core.encodings import Bits, Floats
from fedslice.core.entries import OnSlice
from fedslice.core.errors import UserError
from fedslice.core.message import Field
from fedslice.core.update import Update
from fedslice.recipe import PARTS, Recipe
from fedslice.recipes import get
from toys import pair, run

HALF = '''
import torch
import fedslice
from fedslice.core.encodings import Floats
from fedslice.core.entries import OnSlice
from fedslice.core.message import Field
from fedslice.core.update import Update

class Half(fedslice.Codec):
    """Send updates in half precision."""

    label = "half"
    scale: float = 1024.0

    def fields(self, spec, part, layout):
        return {"values": Field(Floats(torch.float16), on=part)}

    def encode(self, memory, head, update, came):
        return {"values": OnSlice(update.slice, {n: (v * self.scale).half() for n, v in update.values.items()})}

    def decode(self, state, head, part, body):
        dtypes = state.run.spec.dtypes
        return Update(part, part, {n: v.to(dtypes[n]) / self.scale for n, v in body["values"].values.items()})
'''


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test registers is gone after it."""
    registry.kinds("codec")
    before = {place: dict(kinds) for place, kinds in registry._kinds.items()}
    loaded, modules = dict(registry._loaded), set(sys.modules)
    yield
    for place, kinds in registry._kinds.items():
        kinds.clear()
        kinds.update(before[place])
    registry._loaded.clear()
    registry._loaded.update(loaded)
    for name in set(sys.modules) - modules:
        if name.startswith(("half_", "mine_", "broken_")):
            del sys.modules[name]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, entries: str, name: str = "mine") -> None:
    """A package on the path that brings parts."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fedslice.parts]\n{entries}\n")
    monkeypatch.syspath_prepend(str(folder))


class Same(Codec):
    """Values as they are."""

    label = "same"
    share: float = 0.5
    words_of: tuple[str, ...] = ()

    def fields(self, spec: Any, part: Any, layout: int) -> Any:
        return {"values": Field(Floats(spec.dtype), on=part)}

    def encode(self, memory: Any, head: Any, update: Update, came: Any) -> Any:
        return {"values": OnSlice(update.slice, update.values)}

    def decode(self, state: Any, head: Any, part: Any, body: Any) -> Update:
        return Update(part, part, body["values"].values)


# --- in Python ----------------------------------------------------------------------------------------------------


def test_a_class_of_ones_own_is_a_checked_frozen_dataclass_without_more_words() -> None:
    part = Same(share=0.25)
    assert dataclasses.is_dataclass(part)
    assert repr(part) == "Same(share=0.25)"
    assert part == Same(share=0.25) != Same()
    assert {part: 1}[Same(share=0.25)] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        part.share = 1.0  # type: ignore[misc]
    recipe = Recipe(codec=part)
    assert recipe.settings()["codec"] == {"name": "same", "share": 0.25, "words_of": []}
    assert recipe.with_options({"share": 0.75}).codec == Same(share=0.75)
    with pytest.raises(UserError, match="codec=same: share='a': input should be a valid number"):
        recipe.with_options({"codec.share": "a"})


def test_a_registered_part_is_found_by_its_name() -> None:
    with pytest.raises(UserError, match="unknown codec part 'same'; choose one of"):
        get("fedavg", codec="same")
    assert package.register(Same) is Same
    assert get("fedavg", codec="same", share=0.1).codec == Same(share=0.1)
    assert PARTS["codec"]["same"] is Same
    assert Recipe.from_settings(Recipe(codec=Same(words_of=("a", "b"))).settings()).codec == Same(words_of=("a", "b"))
    inner = get("flss", inner="same", **{"codec.inner.share": 0.2})
    assert inner.codec == StreamingSubspace(inner=Same(share=0.2))


def test_a_run_with_an_own_codec_is_one_with_dense() -> None:
    options: dict[str, Any] = {"cohort": 3, "iterations": 2}
    own, dense = (run(pair(), get("fedavg", codec=codec, **options), rounds=3) for codec in (Same(), Dense()))
    for name, value in dense.model.items():
        torch.testing.assert_close(own.model[name], value)
    assert own.ledger.up_bytes == dense.ledger.up_bytes


def test_a_name_can_be_had_once_and_a_class_may_be_defined_again() -> None:
    package.register(Same)

    class Other(Same):
        label = "same"

    with pytest.raises(UserError, match=r"codec=same is the name of two parts: test_registry:Same and .*Other; give"):
        package.register(Other)

    class Mine(Same):
        label = "sign"

    with pytest.raises(UserError, match=r"codec=sign is the name of two parts: fedslice and .*Mine"):
        package.register(Mine)
    again = type("Same", (Same,), {"__module__": Same.__module__, "__qualname__": "Same", "label": "same"})
    package.register(again)
    assert registry.find("codec", "same") is again


def incomplete() -> type:
    class Blank(Codec):
        label = "blank"

        def fields(self, spec: Any, part: Any, layout: int) -> Any:
            return {}

    return Blank


def nameless() -> type:
    class Blank(Combine):
        pass

    return Blank


def spaced() -> type:
    class Blank(Combine):
        label = "two words"

    return Blank


def without_default() -> type:
    class Blank(Combine):
        label = "blank"
        share: float

    return Blank


def wrong_default() -> type:
    class Blank(Combine):
        label = "blank"
        share: float = "much"  # type: ignore[assignment]

    return Blank


def mutable() -> type:
    class Blank(Combine):
        label = "blank"
        shares: list[float] = []  # noqa: RUF012

    return Blank


def unhashable() -> type:
    class Blank(Combine):
        label = "blank"
        shares: dict[str, float] = dataclasses.field(default_factory=dict)

    return Blank


def tensor() -> type:
    class Blank(Combine):
        label = "blank"
        start: Tensor | None = None

    package.register(Blank)
    Recipe(combine=Blank(start=torch.zeros(1)))
    return Blank


def reserved() -> type:
    class Blank(Combine):
        label = "blank"
        name: str

    return Blank


def constructor() -> type:
    class Blank(Combine):
        label = "blank"

        def __init__(self, share: float = 1.0) -> None:
            pass

    return Blank


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            incomplete,
            r"codec=blank: Blank \(.*test_registry.py, line \d+\) does not define decode, encode, which every",
        ),
        (nameless, "label is none, expected a name such as label = 'half'"),
        (spaced, "label is 'two words', expected a name"),
        (without_default, "setting 'share' has no default; give it one"),
        (wrong_default, "combine=blank: Blank .* with its defaults: share='much': input should be a valid number"),
        (mutable, "Blank .*mutable default .*list.* for field shares .*; a setting is an annotated number"),
        (unhashable, r"setting 'shares' is \{\}, expected a number, a word, .*: settings are compared"),
        (tensor, r"setting 'start' is tensor\(\[0.\]\), expected a number"),
        (reserved, "a setting cannot be called 'name'"),
        (constructor, r"Blank .*defines __init__, which is made of its settings; annotate them"),
        (lambda: 3, "register: 3 is no class of a part"),
        (lambda: Codec, "label is none"),
    ],
)
def test_what_cannot_be_a_part_is_told_with_its_place(make: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as refusal:
        package.register(make())
    assert "\n" not in str(refusal.value)


def test_a_part_that_lacks_a_method_is_refused_where_it_is_used() -> None:
    with pytest.raises(UserError, match=r"codec=blank: Blank \(.*\) does not define decode, encode"):
        Recipe(codec=incomplete()())
    with pytest.raises(UserError, match=r"codec.inner=blank: Blank"):
        Recipe(codec=StreamingSubspace(inner=incomplete()()))
    with pytest.raises(UserError, match=r"combine: Blank \(.*\) has no name; give it one, such as label = 'blank'"):
        Recipe(combine=nameless()())


# --- bytes --------------------------------------------------------------------------------------------------------


class Liar(Same):
    """Declares less than it sends."""

    label = "liar"
    how: str = "wide"
    known: ClassVar[dict[str, Any]] = {"wide": torch.float16, "bits": torch.float32}

    def fields(self, spec: Any, part: Any, layout: int) -> Any:
        encoding = Bits(4) if self.how == "bits" else Floats(torch.float16 if self.how == "wide" else spec.dtype)
        return {"values": Field(encoding, on=part)}

    def encode(self, memory: Any, head: Any, update: Update, came: Any) -> Any:
        if self.how == "bits":
            return {"values": OnSlice(update.slice, {n: v.long() + 16 for n, v in update.values.items()})}
        body = {"values": OnSlice(update.slice, update.values)}
        return body | {"more": update.values["shared.weight"]} if self.how == "more" else {} if not self.how else body


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("wide", "codec=liar: field 'values' holds float32 and is declared as float16; declare what travels"),
        ("bits", "codec=liar: field 'values' holds int64 beyond 0 to 15, and is declared as 4 bits each"),
        ("more", r"codec=liar: encode returned a field 'more', which fields\(\) does not declare"),
        ("", r"codec=liar: encode returned no field 'values', which fields\(\) declares"),
    ],
)
def test_bytes_cannot_be_miscounted(how: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        run(pair(), Recipe(codec=Liar(how=how)).with_options({"iterations": 1, "cohort": 2}))


# --- on the command line ------------------------------------------------------------------------------------------


def test_a_part_from_a_file_runs_resumes_and_is_reported_without_its_file(here: Path) -> None:
    (here / "half.py").write_text(HALF)
    words = (*SMALL, "codec=half.py:Half", "codec.scale=512", "--out", "run")
    whole = fedslice("run", *words[:-1], "whole", "--json").metrics
    first = fedslice("run", *words, "--json")
    assert first.code == 0
    (here / "run" / "finished.json").unlink()  # as if it had not ended
    again = fedslice("run", *words, "--resume", "--json")
    assert again.code == 0, again.err
    assert [row["up_bytes"] for row in again.metrics] == [row["up_bytes"] for row in whole]
    assert again.metrics == whole
    (here / "half.py").unlink()
    code = "import sys\nfrom fedslice.cli import main\ntry:\n    main()\nfinally:\n    print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "run", "--out", "page.html"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not any(name.startswith("half") for name in done.stdout.split())
    page = (here / "page.html").read_text()
    assert "codec.scale" in page or "512" in page


def test_a_part_from_an_experiment_file_and_from_a_module(here: Path) -> None:
    (here / "mine_codecs.py").write_text(HALF)
    (here / "half.toml").write_text(
        'task = "hotcold"\nrounds = 1\n[set]\nclients = 20\nitems = 30\ncohort = 4\n'
        '[set.codec]\nname = "mine_codecs:Half"\nscale = 256.0\n'
    )
    done = fedslice("run", "half.toml", "--out", "here", "--json")
    assert done.code == 0, done.err
    config = (here / "here" / "config.json").read_text()
    assert '"name": "half"' in config
    assert '"scale": 256.0' in config


def test_an_inner_part_is_the_same_in_words_in_tables_and_in_what_a_run_keeps(here: Path) -> None:
    words = ("codec=subspace", "rank=2", "warmup=1", "codec.inner=sign", "codec.inner.error_feedback=false")
    assert fedslice("run", *SMALL, *words, "--out", "words").code == 0
    lines = "".join(f"{word.replace('=', ' = ')}\n" for word in SMALL[-4:])
    (here / "nested.toml").write_text(
        f'task = "hotcold"\nrounds = 6\ncohort = 6\neval_every = 2\n[set]\n{lines}[set.codec]\nname = "subspace"\n'
        'rank = 2\nwarmup = 1\ninner = { name = "sign", error_feedback = false }\n'
    )
    assert fedslice("run", "nested.toml", "--out", "table").code == 0
    kept = [json.loads((here / run / "config.json").read_text()) for run in ("words", "table")]
    assert kept[0] == kept[1]
    assert kept[0]["recipe"]["codec"]["inner"] == {"name": "sign", "error_feedback": False}
    codec = StreamingSubspace(rank=2, warmup=1, inner=Sign(error_feedback=False))
    assert Recipe.from_settings(kept[0]["recipe"]).codec == codec
    again = fedslice("run", "nested.toml", "--out", "words", "--resume")
    assert again.code == 0, again.err
    other = fedslice("run", *SMALL, *words[:-1], "--out", "words", "--resume")
    assert other.code == 2
    assert "error_feedback" in other.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("codec=half.py:Hal", "half.py has no 'Hal'; did you mean half.py:Half?"),
        ("codec=nix.py:Half", "there is no file nix.py"),
        ("codec=nix.half:Half", "there is no module 'nix.half'"),
        ("codec=broken.py:Half", "broken.py could not be loaded: ZeroDivisionError: division by zero"),
        ("codec=half.py:torch", "codec=half.py:torch is <module"),
        ("combine=half.py:Half", "combine=half.py:Half is a part for codec; write codec=half.py:Half"),
        ("codec=half.py:Half scale=x", "codec=half: scale='x': input should be a valid number"),
        ("codec=half.py:Update", "codec=half.py:Update is <class"),
        ("codec=half.py:fedslice.core.part.Part", "has no place in a recipe; derive it from Codec, Combine"),
        ("codec=:Half", "':Half' is no address; write module:name"),
    ],
)
def test_an_address_that_leads_nowhere_is_told(here: Path, words: str, says: str) -> None:
    (here / "half.py").write_text(HALF)
    (here / "broken.py").write_text("1 / 0")
    done = fedslice("run", *SMALL, *words.split())
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1


# --- entry points -------------------------------------------------------------------------------------------------


def test_an_entry_point_is_found_by_name_and_listed_with_its_package(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine_half.py").write_text(HALF)
    install(here, monkeypatch, "half = mine_half:Half\nlost = mine_lost:Lost")
    assert "mine_half" not in sys.modules
    assert get("fedavg", codec="sign").codec == Sign()
    assert "mine_half" not in sys.modules, "a known name loads nothing"
    assert get("fedavg", codec="half", scale=2).codec.settings() == {"scale": 2.0}
    with pytest.raises(UserError, match=r"codec=lost: entry point mine_lost:Lost of mine could not be loaded: Module"):
        get("fedavg", codec="lost")
    done: Done = fedslice("list", "parts", "--json")
    row = next(row for row in done.document["parts"] if row["part"] == "half")
    assert row["from"] == "mine (mine_half:Half)"
    assert row["defaults"] == {"scale": 1024.0}
    assert "entry point mine_lost:Lost of mine could not be loaded" in done.err
    assert "from mine (mine_half:Half)" in fedslice("list", "parts").out


def test_two_packages_with_one_name_are_both_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine_half.py").write_text(HALF)
    (here / "mine_sign.py").write_text(HALF.replace('"half"', '"sign"'))
    install(here, monkeypatch, "half = mine_half:Half\nother = mine_sign:Half")
    with pytest.raises(UserError, match=r"codec=sign is the name of two parts: fedslice and mine \(mine_sign:Half\)"):
        get("fedavg", codec="other")


def test_the_places_are_those_of_a_recipe() -> None:
    assert tuple(PARTS) == registry.PLACES == tuple(field.name for field in dataclasses.fields(Recipe))
    for place, kinds in PARTS.items():
        assert all(registry.is_own(kind) and kind.place == place for kind in kinds.values())
    assert registry.origin(Mean) == "fedslice"
