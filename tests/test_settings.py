"""Settings have one owner and a type: what belongs to whom, what is refused, and what the user did not say."""

import datetime
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from command import SMALL, fedslice
from fedslice import Experiment, recipes, tasks
from fedslice.codecs import Dense, TopK
from fedslice.combine import HeatCorrected
from fedslice.config import Settled, assignments, known_settings, request, resolve, settle
from fedslice.core.errors import UserError, shown, unknown
from fedslice.local import Local, Prox
from fedslice.measure.base import Instrument
from fedslice.recipe import PARTS, Recipe
from fedslice.runs.comparison import requests
from fedslice.select import Uniform
from fedslice.settings import pairs, read, written
from toys import chosen, recommender, training

AMBIGUOUS = (
    "Setting 'beta' is ambiguous for recipe 'fedntd': both local.fedntd.beta and task.beta exist. Use the full name."
)


def settled(task: str = "hotcold", recipe: str = "fedavg", **settings: Any) -> Settled:
    return settle(request({"task": task, "recipe": recipe, "set": settings}))


def refusal(task: str = "hotcold", recipe: str = "fedavg", **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        settled(task, recipe, **settings)
    return str(caught.value)


# --- owners ---------------------------------------------------------------------------------------------------------


def test_a_name_that_the_task_and_a_part_have_is_refused_with_its_full_names() -> None:
    assert refusal("mnist", "fedntd", beta=0.3, partition="dirichlet") == AMBIGUOUS
    assert "both local.fdrl.beta and task.beta exist" in refusal("agnews", "fdrl", beta=0.3)
    assert "both local.optimizer.momentum and server.momentum exist" in refusal(recipe="fedavgm", momentum=0.3)
    with pytest.raises(
        UserError, match=r"^Setting 'decay' is ambiguous: both local\.schedule\.decay and codec\.decay exist\."
    ):
        recipes.get("flss", decay=0.5)


def test_a_full_name_sets_what_it_names() -> None:
    found = settled("mnist", "fedntd", **{"task.beta": 0.3, "local.beta": 0.7, "partition": "dirichlet"})
    assert found.options.model_dump()["beta"] == 0.3
    assert found.recipe.settings()["local"]["fedntd"]["beta"] == 0.7
    found = settled("mnist", "fedavg", **{"task.beta": 0.3, "local.lr": 0.2, "task.partition": "dirichlet"})
    assert (found.options.model_dump()["beta"], found.recipe.local.optimizer.lr) == (0.3, 0.2)


def test_a_bare_name_with_one_owner_goes_to_it() -> None:
    assert settled("mnist", "fedavg", beta=0.3, partition="dirichlet").options.model_dump()["beta"] == 0.3
    assert settled("hotcold", "fedntd", beta=0.3).recipe.settings()["local"]["fedntd"]["beta"] == 0.3
    assert settled("hotcold", "fedavg", local="fedntd", beta=0.3).recipe.settings()["local"]["fedntd"]["beta"] == 0.3


def test_an_experiment_file_may_name_owners_by_dots_or_by_tables(tmp_path: Path) -> None:
    task = 'task = "mnist"\nrecipe = "fedntd"\nrounds = 1\n'
    rest = 'partition = "dirichlet"\nclients = 4\ntrain = 60\ncohort = 2\n'
    for number, text in enumerate(
        (
            f"[set]\ntask.beta = 0.3\nlocal.beta = 0.7\n{rest}",
            f'[set]\n"task.beta" = 0.3\n"local.beta" = 0.7\n{rest}',
            f"[set]\n{rest}[set.task]\nbeta = 0.3\n[set.local]\nbeta = 0.7\n",
        )
    ):
        file, out = tmp_path / f"{number}.toml", tmp_path / str(number)
        file.write_text(task + text)
        assert fedslice("run", file, "--out", out).code == 0
        config = json.loads((out / "config.json").read_text())
        assert (config["task"]["beta"], config["recipe"]["local"]["fedntd"]["beta"]) == (0.3, 0.7)
    file.write_text(f"{task}[set]\nbeta = 0.3\n{rest}")
    assert fedslice("run", file).err == f"fedslice: {file}: {AMBIGUOUS}\n"
    file.write_text(f'{task}[set]\nlocal.beta = 0.3\n"local.beta" = 0.3\n{rest}')
    assert fedslice("run", file).err == f"fedslice: {file}: Setting local.beta is given twice. Give it once.\n"


def test_an_experiment_file_is_named_in_a_mistake_of_its_own_and_in_no_other(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text('task = "hotcold"\n[set]\nlr = 2020-01-01\niterations = 3\n')
    wrong = "local.optimizer=sgd: lr=2020-01-01: input should be a valid number.\n"
    for command in ("run", "compare", "inspect"):
        assert fedslice(command, file).err == f"fedslice: {file}: {wrong}"
    assert fedslice("run", file, "--set", "lr=x").err.startswith("fedslice: local.optimizer=sgd: lr='x': ")
    assert fedslice("run", file, "--set", "lr=0.1", "epochs=x").err.startswith(
        "fedslice: local.sampler=batches: epochs='x': "
    )
    twice = fedslice("run", file, "--set", "lr=0.1", "epochs=2").err
    assert twice == "fedslice: local.sampler=batches: iterations=3 and epochs=2 are both given; give one.\n"


def test_a_comparison_gives_a_setting_to_the_recipes_that_have_it_and_judges_each() -> None:
    said = {"task": "mnist", "set": {"task.beta": 0.3, "local.mu": 0.5, "lr": 0.2, "partition": "dirichlet"}}
    fedavg, fedprox, fedntd = requests(said, ["fedavg", "fedprox", "fedntd"], 1)
    assert fedavg.set == fedntd.set == {"task.beta": 0.3, "lr": 0.2, "partition": "dirichlet"}
    assert fedprox.set == said["set"]
    asked = requests({"task": "mnist", "set": {"beta": 0.3, "partition": "dirichlet"}}, ["fedavg", "fedntd"], 1)
    assert settle(asked[0]).options.model_dump()["beta"] == 0.3
    with pytest.raises(UserError, match="ambiguous for recipe 'fedntd'"):
        settle(asked[1])
    done = fedslice("compare", "mnist", "--recipes", "fedavg,fedntd", "--set", "beta=0.3", "partition=dirichlet")
    assert (done.code, done.err) == (2, f"fedslice: {AMBIGUOUS}\n")


def test_a_model_that_only_one_recipe_of_a_comparison_lacks_is_named() -> None:
    words = ("train=60", "clients=4", "cohort=2")
    for task, model in (("mnist", "fdrl-mlp"), ("fmnist", "fdrl-cnn")):
        done = fedslice("compare", task, "--recipes", "fedavg,fdrl", "--set", *words)
        assert done.code == 2
        assert "recipe 'fdrl': slices=shared: no parameter matches 'shared.*'" in done.err
        assert f"or a model with two encoders: model={model} (there are fdrl-mlp, " in done.err
        settings = assignments([*words, f"model={model}"])
        for asked in requests({"task": task, "set": settings}, ["fedavg", "fdrl"], 1):
            resolve(asked).experiment()


@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_usual_settings_of_a_task_reach_every_recipe_that_has_them(task: str) -> None:
    for name in recipes.RECIPES:
        found = settled(task, name).recipe.settings()
        for key, value in tasks.TASKS[task].settings.items():
            place, _, setting = key.rpartition(".")
            owners = [where for where, own in found.items() if setting in own and place in ("", where)]
            if setting in PARTS:
                assert found[setting]["name"] == value
            elif owners:
                assert [found[where][setting] for where in owners] == [value]
    if "local.decay" in tasks.TASKS[task].settings:
        assert settled(task).recipe.local.schedule.decay == 0.999


def test_a_given_number_of_steps_takes_the_place_of_usual_epochs() -> None:
    assert settled("mnist").recipe.local.sampler.epochs == 1
    local = settled("mnist", iterations=7).recipe.local
    assert (local.sampler.iterations, local.sampler.epochs) == (7, None)
    assert settled("mnist", iterations=None).recipe.local.sampler.epochs == 1
    assert "are both given" in refusal("mnist", iterations=7, epochs=2)


# --- once -----------------------------------------------------------------------------------------------------------


def test_a_setting_that_is_given_twice_is_refused() -> None:
    assert refusal(**{"local.lr": 0.1, "lr": 0.2}) == (
        "Setting local.optimizer.lr is given twice, as 'local.lr' and as 'lr'. Give it once."
    )
    assert "task.items is given twice" in refusal(**{"items": 5, "task.items": 5})
    for words in (("lr=0.1", "lr=0.2"), ("lr=0.1", "--set", "lr=0.2")):
        done = fedslice("run", *SMALL, *words)
        assert (done.code, done.err) == (2, "fedslice: Setting 'lr' is given twice, as 0.1 and as 0.2. Give it once.\n")
    for word in ("cohort=3", "select.cohort=3"):
        done = fedslice("run", *SMALL, word)
        assert (done.code, "select.cohort is given twice" in done.err) == (2, True)
    with pytest.raises(UserError, match="is given twice"):
        recipes.get("fedavg").with_options({"lr": 0.1, "local.lr": 0.1})


def test_an_option_takes_the_place_of_a_files_setting(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text('task = "hotcold"\nrounds = 1\ncohort = 3\n[set]\nlr = 0.5\nclients = 10\nitems = 9\n')
    assert fedslice("run", file, "--cohort", 4, "--set", "lr=0.25", "--out", tmp_path / "out").code == 0
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["recipe"]["select"]["cohort"], config["recipe"]["local"]["optimizer"]["lr"]) == (4, 0.25)


# --- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "saying"),
    [
        ({"lr": True}, "local.optimizer=sgd: lr=true: input should be a valid number."),
        ({"lr": "0.1"}, "local.optimizer=sgd: lr='0.1': input should be a valid number."),
        ({"lr": None}, "local.optimizer=sgd: lr=none: input should be a valid number."),
        ({"lr": 10**400}, "local.optimizer=sgd: lr=1000000000"),
        ({"lr": 10**400}, "...: input should be a smaller number."),
        ({"lr": 16**5000}, "local.optimizer=sgd: lr=0x1000000000"),
        ({"lr": datetime.date(2020, 1, 1)}, "local.optimizer=sgd: lr=2020-01-01: "),
        ({"lr": [True, {"a": None}]}, "local.optimizer=sgd: lr=[true, {a = none}]: "),
        ({"iterations": True}, "local.sampler=batches: iterations=true: input should be a valid integer."),
        ({"iterations": 3.0}, "local.sampler=batches: iterations=3.0: input should be a valid integer."),
        ({"replacement": 1}, "select=uniform: replacement=1: input should be a valid boolean."),
        ({"clients": True}, "task hotcold: clients=true: input should be a valid integer."),
        ({"clients": "30"}, "task hotcold: clients='30': input should be a valid integer."),
        ({"zipf": "1"}, "task hotcold: zipf='1': input should be a valid number."),
    ],
)
def test_a_value_of_another_type_is_refused(settings: dict[str, Any], saying: str) -> None:
    told = refusal(**settings)
    assert saying in told
    assert len(told) < 200


def test_a_whole_number_is_a_number_and_numpys_are_as_good() -> None:
    assert settled(lr=1, zipf=2).recipe.local.optimizer.lr == 1.0
    local = training(lr=np.float32(0.5), iterations=np.int64(3))  # type: ignore[arg-type]
    assert (local.optimizer.lr, local.sampler.iterations, type(local.sampler.iterations)) == (0.5, 3, int)


# --- what the user did not say --------------------------------------------------------------------------------------


def planned(task: str = "hotcold", **settings: Any) -> Any:
    return resolve(request({"task": task, "set": {"items": 20, "samples": 8} | settings}))


def test_a_usual_cohort_adapts_to_few_clients_and_says_so(tmp_path: Path) -> None:
    plan = planned(clients=7)
    assert plan.config["recipe"]["select"]["cohort"] == 7
    assert plan.notes == ("The task has 7 clients. The cohort is 7, not 50 as usual.",)
    assert planned(clients=1).notes == ("The task has 1 client. The cohort is 1, not 50 as usual.",)
    assert planned(clients=50).notes == ()
    assert planned(clients=7, replacement=True).recipe.select.cohort == 50
    done = fedslice(
        "run", "hotcold", "--rounds", 1, "--out", tmp_path / "o", "--set", "clients=7", "items=20", "--json"
    )
    assert done.document["metrics"]
    assert done.err.splitlines()[0] == "fedslice: The task has 7 clients. The cohort is 7, not 50 as usual."
    words = ("--recipes", "fedavg,fedsubavg", "--seeds", 2, "--rounds", 1, "--out", tmp_path / "c")
    done = fedslice("compare", "hotcold", *words, "--set", "clients=7", "items=20")
    assert done.err.count("not 50 as usual") == 1


def test_a_cohort_that_was_asked_for_is_never_changed() -> None:
    with pytest.raises(UserError, match=r"^cohort=8 but the task has 7 clients; give 7 or fewer\.$"):
        planned(clients=7, cohort=8)
    assert planned(clients=7, cohort=6).config["recipe"]["select"]["cohort"] == 6


def test_clients_without_a_training_sample_are_told() -> None:
    few = r"40 clients, as 10 of 50 have no training sample"
    assert planned(clients=50, samples=1, cohort=5).notes == (f"The task has {few}.",)
    assert planned(clients=50, samples=1).notes == (f"The task has {few}. The cohort is 40, not 50 as usual.",)
    with pytest.raises(UserError, match=rf"^cohort=50 but the task has {few}; give 40 or fewer\.$"):
        planned(clients=50, samples=1, cohort=50)


def test_a_recipe_without_a_cohort_takes_all_of_few_clients_and_warns() -> None:
    task = recommender()
    clients = len(task.federation)
    with pytest.warns(UserWarning, match=f"The cohort is {clients}, not 50 as usual") as caught:
        Experiment(task, recipes.get("fedavg"), rounds=1)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Experiment(task, recipes.get("fedavg", cohort=clients), rounds=1)
    for uniform, enrolled, cohort in ((Uniform(), 30, 30), (Uniform(), 100, 50), (Uniform(replacement=True), 3, 50)):
        assert len(chosen(Recipe(select=uniform), 1, enrolled).clients) == cohort


# --- in Python ------------------------------------------------------------------------------------------------------


def test_a_part_can_be_given_itself_where_its_name_can() -> None:
    assert recipes.get("fedavg", codec=TopK(share=0.5), lr=0.2).codec == TopK(share=0.5)
    changed = recipes.get("fedprox", combine=HeatCorrected(max_coef=3), local=Local(Prox(mu=0.5)), **{"local.mu": 0.25})
    assert (changed.combine, changed.local) == (HeatCorrected(max_coef=3), Local(Prox(mu=0.25)))

    class Half(Dense):
        label = "half"

    half = Half()
    assert recipes.get("fedavg", codec=half).codec is half


def test_a_cohort_that_was_never_given_stands_in_no_other_parts_way() -> None:
    assert recipes.get("fedavg", select="pooled").select.batch_scale() == 50
    assert recipes.get("centralsgd", select="uniform").select == Uniform()


@pytest.mark.parametrize(
    ("make", "saying"),
    [
        (
            lambda: Recipe(codec="topk"),
            "Recipe: codec='topk' is not a part, expected a Codec; write for example codec=TopK(",
        ),  # type: ignore[arg-type]
        (lambda: Recipe(codec=TopK), "is not a part, expected a Codec; write for example codec=Dense()"),  # type: ignore[arg-type]
        (lambda: Recipe(local=Dense()), "is not a part, expected a Local; write for example local=Local()"),  # type: ignore[arg-type]
        (lambda: recipes.get("fedavg", codec=TopK), "expected a part or a name, one of: dense, "),
        (lambda: recipes.get("fedavg", codec=training()), "expected a part or a name, one of: dense, "),
        (
            lambda: Experiment(recommender(), Recipe(), rounds=1, measure=[Instrument()]),
            ": expected a list of names; write for example measure=['personal']",
        ),  # type: ignore[list-item]
        (
            lambda: Experiment(recommender(), Recipe(), rounds=1, measure="personal"),
            "write for example measure=['personal']",
        ),
        (
            lambda: Experiment(recommender(), Recipe(), rounds=1, engine=object()),
            "expected a name.",
        ),  # type: ignore[arg-type]
        (
            lambda: Experiment(recommender(), Recipe(), rounds=1, device="cuba"),
            "Unknown device 'cuba'. Available here: cpu",
        ),
    ],
)
def test_an_object_where_another_is_expected_is_told_in_a_sentence(make: Any, saying: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert saying in str(caught.value)


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("nothere", ["renttherunway", "taobao"], "choose one of: renttherunway, taobao."),
        ("FedAvg", ["fedavg", "fedprox"], "did you mean 'fedavg'?"),
        ("auc", ["test_auc", "test_loss"], "did you mean 'test_auc'?"),
        ("loss", ["test_loss", "train_loss"], "choose one of: test_loss, train_loss."),
        ("fedporx", ["fedavg", "fedprox"], "did you mean 'fedprox'?"),
    ],
)
def test_only_a_name_that_is_near_is_suggested(name: str, known: list[str], hint: str) -> None:
    assert str(unknown("thing", name, known)) == f"unknown thing {name!r}; {hint}"


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(alphabet="ab1.'\"#=\n [")


@given(VALUES)
@example("none")
@example('"quoted"')
@example("1 # one")
@example("1\nlr = 2")
@example("1\n")
@example("'1'\x7f")
@example("[" * 5000)
@example("9" * 5000)
def test_a_command_has_the_values_that_were_read(value: Any) -> None:
    again = read(written(value))
    assert (again, type(again)) == (value, type(value))
    assert len(shown(value)) <= 60


NUMBERS = [
    *("nan", "-nan", "inf", "-inf", "1e400", "-1e400", "1e-400", "5e-324", "1e308", "0", "-0.0", "-1", "1.5", "1e9"),
    *("9" * 20, "9" * 400, "9" * 4299, "9" * 4301, "0x" + "f" * 5000, "0b1", "0o17", "1_0", "1__0", "+1", ".5", "1."),
    *(str(2**63), str(2**64), str(-(2**63)), "1,2", "1-2", "0.5,0.25", "½", "∞", "١", "NaN", "Infinity", "1/0", "0/0"),
]
TEXTS = [
    *("", " ", "\t", "\n", "a\nb", "1\nx=2", "1 # c", "#", "=", "a=b", "'", '"', "''", "'x'", '"a\\nb"', '"\\u0000"'),
    *(
        "true",
        "false",
        "True",
        "none",
        "null",
        "\x00",
        "a\x00b",
        "\x1b[31m",
        "\ud800",
        "\u202e",
        "é" * 300,
        "x" * 10_000,
    ),
    *("日本語", "\U0001f600", "*", "?", "[", "]", "[!", "shared.*", "body", "head,body", ",", ",,,", "width", "shared"),
    *("width widths=0.5", "width widths=2", "width drawn=1", "width drawn=true drawn=true", "channel-dropout rate=nan"),
    *("sgd", "prox", "topk", "heat", "mean", "random", "file", "uniform", "iid", "dirichlet", "official", "../x", "/"),
    *("%s", "{0}", "\\", "--set", "lr=0.1", "local.lr", "</script>", "feddd-a", "1-", "-1-2"),
]
NESTS = [
    *("[]", "[[]]", "[1, 2]", "[nan]", "{}", "{a = 1}", "{lr = 0.1}", "{a = {b = 1}}", "[1, 'a', true, [2], {b = 3}]"),
    *("[" * 300 + "]" * 300, "[" * 5000 + "]" * 5000, "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "0000-00-00"),
]
ODD = [*NUMBERS, *TEXTS, *NESTS]
TEN = ["fedavg", "fedntd", "fdrl", "feddd", "heterofl", "flss", "oort", "fedrep", "fetchsgd", "fedadam"]
FIVE = ["hotcold", "mnist", "amazon", "agnews", "sent140"]


@pytest.mark.parametrize("recipe", TEN)
def test_an_odd_value_of_any_setting_is_taken_or_refused_in_a_sentence(recipe: str) -> None:
    """Every setting gets every value, of the recipe's ten parts with one of the five tasks."""
    task = FIVE[TEN.index(recipe) % len(FIVE)]
    known = known_settings(request({"task": task, "recipe": recipe}))
    keys = [*PARTS, *(f"{owner}.{name}" for owner, names in known.items() for name in names)]
    for key, text in itertools.product(keys, ODD):
        try:
            settle(request({"task": task, "recipe": recipe, "set": assignments([f"{key}={text}"])}))
        except UserError as error:
            told = str(error)
            assert told.endswith((".", "?")), told
            assert "\n" not in told, told
            assert len(told) < 1000, told
            told.encode()


@pytest.mark.parametrize(
    "key", [".", "..", ".lr", "task.", "local.", "local.lr.", "a.b.c", "task", "é", "x" * 5000, "\x00"]
)
def test_an_odd_name_of_a_setting_is_refused_in_a_sentence(key: str) -> None:
    with pytest.raises(UserError) as caught:
        settle(request({"task": "mnist", "recipe": "fedntd", "set": {key: 1}}))
    told = str(caught.value)
    assert told.startswith("unknown setting ")
    assert len(told) < 1000


def test_words_that_are_no_assignment_are_told() -> None:
    for words in (["lr"], ["=5"]):
        with pytest.raises(UserError, match=r"is not key=value; write for example lr=0\.1\.$"):
            pairs(words)
        with pytest.raises(UserError, match=r"^--set .* is not key=value; write for example --set lr=0\.1\.$"):
            assignments(words)
