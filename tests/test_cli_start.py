"""The command line's first moments: what it loads, its version, its help, the shell's completion, and Ctrl-C."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedslice as package
from command import ENVIRONMENT, Done, fedslice
from fedslice import index
from fedslice.recipes import ABOUT, RECIPES

SOURCE = Path(package.__file__).parents[1]
HEAVY = {"torch", "numpy", "scipy", "polars", "safetensors", "altair", "vl_convert", "jinja2"}
COMMANDS = (
    *("list", "explain", "inspect", "run", "compare", "reproduce"),
    *("watch", "report", "clients", "features", "export"),
)
# Runs the command line and tells at its end, on standard error, which modules it has loaded.
_WATCHED = """
import sys
from fedslice.cli import main
try:
    main()
finally:
    sys.stderr.write(" ".join(sys.modules))
"""


def start(*words: str, code: str = _WATCHED, **environment: str) -> Done:
    """A process that begins with nothing loaded."""
    found = {**ENVIRONMENT, "PYTHONPATH": str(SOURCE), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=found, capture_output=True, text=True, check=False, timeout=60
    )
    return Done(done.returncode, done.stdout, done.stderr)


def completed(words: str) -> list[str]:
    """What the shell offers for the last of the words."""
    done = start(_FEDSLICE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert done.code == 0
    assert not HEAVY & set(done.err.split())
    return done.out.split()


# --- what is loaded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [(), ("--help",), ("--version",), ("list",), ("list", "--json"), *((command, "--help") for command in COMMANDS)],
)
def test_what_needs_no_model_loads_no_torch(words: tuple[str, ...]) -> None:
    done = start(*words)
    assert done.code == 0
    assert done.out
    assert "typer" in done.err.split()
    assert not HEAVY & set(done.err.split())


def test_importing_the_package_loads_nothing_and_its_names_are_there_when_asked_for() -> None:
    code = """
import sys, fedslice
assert "torch" not in sys.modules
assert set(fedslice.__all__) <= set(dir(fedslice))
from fedslice import UserError
assert "torch" not in sys.modules
from fedslice import *
assert Experiment is fedslice.Experiment and Task.__module__ == "fedslice.task" and "torch" in sys.modules
assert fedslice.recipes.RECIPES and fedslice.nn.LSTM
assert not hasattr(fedslice, "nonsense") and not hasattr(fedslice, "__wrapped__")
"""
    done = start(code=code)
    assert (done.code, done.err) == (0, "")


def test_the_index_says_what_the_tables_say() -> None:
    written = (SOURCE / "fedslice" / "index.json").read_text(encoding="utf-8")
    assert written == index.text(index.build()), "write it again with: python -m fedslice.index"


# --- the version ----------------------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert package.__version__ == project["version"]
    assert fedslice("--version").out == f"fedslice {project['version']}\n"

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert package._version() == project["version"], "a source tree that is not installed knows it, too"


def test_it_is_a_module_to_run() -> None:
    done = start("--version", code="import runpy; runpy.run_module('fedslice', run_name='__main__')")
    assert (done.code, done.out, done.err) == (0, f"fedslice {package.__version__}\n", "")


# --- help and list --------------------------------------------------------------------------------------------------


def test_help_lists_the_commands_in_the_order_of_use_each_with_a_whole_sentence() -> None:
    lines = fedslice("--help").out.partition("Commands:\n")[2].splitlines()
    assert tuple(line.split()[0] for line in lines) == COMMANDS
    assert all(line.endswith(".") and not line.endswith("..") for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_values_and_not_their_types(command: str) -> None:
    options = fedslice(command, "--help").out.partition("Options:\n")[2]
    assert options
    for kind in ("<bool>", "<str>", "<int>", "<float", "<list"):
        assert kind not in options


def test_help_tells_where_defaults_come_from() -> None:
    words = " ".join(fedslice("run", "--help").out.split())
    for option in ("--rounds", "--cohort", "--eval-every"):
        assert "[default: (the task's own)]" in words.partition(option)[2][:100]
    assert "--out DIR Run directory. [default: (a directory of its own below runs)]" in words


def test_what_is_listed_for_a_recipe_makes_it_from_fedavg() -> None:
    rows = {row["recipe"]: row for row in fedslice("list", "--json").document["recipes"]}
    assert rows.keys() == RECIPES.keys() == ABOUT.keys()
    for name, recipe in RECIPES.items():
        assert RECIPES["fedavg"].with_options(rows[name]["set"]).settings() == recipe.settings()
    shown = [str(row["set"]) for row in rows.values()]
    assert len(set(shown)) == len(shown), "two recipes look the same"


def test_the_list_says_what_recipes_do_and_what_defaults_are() -> None:
    whole = fedslice("list").out
    assert "scaffold         Correct the drift of local steps by control variates." in whole
    assert "--set local=scaffold weights=uniform" in whole
    assert "local=prox              as local=plain, and mu=0.01" in whole
    assert "by default 200 rounds, evaluated every 10 rounds, cohort=50" in whole
    assert "fedsubavg/table2" in whole
    assert "hotcold" not in fedslice("list", "recipes").out
    assert whole == "".join(fedslice("list", kind).out for kind in ("recipes", "parts", "tasks", "exhibits"))
    assert list(fedslice("list", "tasks", "--json").document) == ["tasks"]


# --- completion -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fedslice ", COMMANDS),
        ("fedslice re", ("reproduce", "report")),
        ("fedslice run --reci", ("--recipe",)),
        ("fedslice run movi", ("movielens",)),
        ("fedslice run hotcold --recipe fedsub", ("fedsubavg",)),
        ("fedslice compare hotcold --recipes lo", ("local",)),
        ("fedslice compare hotcold --recipes fedavg,fedav", ("fedavg,fedavgm",)),
        ("fedslice run hotcold --measure gr", ("gradient-norms",)),
        ("fedslice explain fedsub", ("fedsubavg",)),
        ("fedslice reproduce fedsubavg/t", ("fedsubavg/table1", "fedsubavg/table2", "fedsubavg/table3")),
        ("fedslice list ", ("recipes", "parts", "tasks", "exhibits")),
    ],
)
def test_the_shell_completes(words: str, expected: tuple[str, ...]) -> None:
    assert tuple(completed(words)) == expected


def test_completion_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    done = fedslice("--show-completion")
    assert done.code == 0
    assert "_FEDSLICE_COMPLETE" in done.out


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["torch", "typer"])
def test_an_interrupt_while_modules_load_is_one_sentence(tmp_path: Path, module: str) -> None:
    """Even where an exception would be swallowed, as it is by torch when it loads NumPy."""
    text = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    pass\n"
    (tmp_path / f"{module}.py").write_text(text)
    place = os.pathsep.join([str(tmp_path), str(SOURCE)])
    done = start("inspect", "hotcold", code="from fedslice.cli import main; main()", PYTHONPATH=place)
    assert (done.code, done.out, done.err) == (130, "", "fedslice: interrupted.\n")


def test_an_interrupt_that_leaves_nothing_behind_speaks_of_no_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedslice.measure.heat.describe", stop)
    done = fedslice("inspect", "hotcold", "--set", "clients=20", "items=20")
    assert (done.code, done.out, done.err) == (130, "", "fedslice: interrupted.\n")
