"""What a user gets wrong is told in one sentence: exit code 2, no traceback, nothing printed, nothing written."""

import gzip
from pathlib import Path

import pytest

from command import SMALL, TINY, Done, fedslice, process
from layouts import write_amazon, write_movielens

RUN = ("run", *SMALL)  # ends in --set, so that assignments may follow
COMPARE = ("compare", *SMALL)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refuses(*words: object, saying: str) -> Done:
    """The command fails as it should, and leaves the working directory as it was."""
    before = contents(Path())
    done = fedslice(*words)
    assert_one_sentence(done, saying)
    assert contents(Path()) == before
    return done


def assert_one_sentence(done: Done, saying: str) -> None:
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith("fedslice: ")
    assert done.err.count("\n") == 1
    assert done.err.endswith("\n")
    assert "Traceback" not in done.err
    assert saying in done.err


def test_as_a_process(tmp_path: Path) -> None:
    before = contents(tmp_path)
    done = process(*RUN, "lr=-1", cwd=tmp_path)
    assert_one_sentence(done, "local.optimizer=sgd: lr=-1: input should be greater than 0.")
    assert contents(tmp_path) == before


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "saying"),
    [
        ((*RUN, "--recipe", "fedsubavgg"), "unknown recipe 'fedsubavgg'; did you mean 'fedsubavg'?"),
        ((*COMPARE, "--recipes", "fedavg,fedporx"), "unknown recipe 'fedporx'; did you mean 'fedprox'?"),
        ((*RUN, "--recipe", "xyz"), "choose one of: apfl, centralsgd, ditto, fdrl, "),
        (("run", "hotcol"), "unknown task 'hotcol'; did you mean 'hotcold'?"),
        (("inspect", "movielense"), "unknown task 'movielense'; did you mean 'movielens'?"),
        (("compare", "amzon"), "unknown task 'amzon'; did you mean 'amazon'?"),
        ((*COMPARE, "--target", "test_acu=0.6"), "unknown metric 'test_acu'; did you mean 'test_auc'?"),
        ((*COMPARE, "--target", "auc=0.6"), "unknown metric 'auc'; did you mean 'test_auc'?"),
        ((*RUN, "itmes=5"), "unknown setting 'itmes'; did you mean 'items'?"),
        ((*RUN, "mu=0.1"), "unknown setting 'mu'"),
        ((*RUN, "combine.lr=0.1"), "unknown setting 'combine.lr'; combine has weights."),
        (
            (*RUN, "local.foo=1"),
            "unknown setting 'local.foo'; local has optimizer, schedule, sampler, clip, accumulate, lr, ",
        ),
        ((*RUN, "local.lrr=1"), "unknown setting 'local.lrr'; did you mean 'local.lr'?"),
        ((*RUN, "codec.share=1"), "unknown setting 'codec.share'; codec has no settings."),
        (
            (*RUN, "lokal.lr=1"),
            "unknown setting 'lokal.lr'; settings belong to select, slices, local, codec, combine, ",
        ),
        ((*RUN, "task.itmes=9"), "unknown setting 'task.itmes'; did you mean 'task.items'?"),
        ((*RUN, "LR=1"), "unknown setting 'LR'; did you mean 'lr'?"),
        (("inspect", "nothere"), "unknown task 'nothere'; choose one of: agnews, "),
        ((*COMPARE, "local.lrr=1"), "unknown setting 'local.lrr'; did you mean 'local.lr'?"),
        ((*COMPARE, "lrr=0.1"), "unknown setting 'lrr'; did you mean 'lr'?"),
        (("inspect", "hotcold", "--set", "client=9"), "unknown setting 'client'; did you mean 'clients'?"),
        ((*RUN, "combine=heet"), "unknown combine part 'heet'; did you mean 'heat'?"),
        ((*COMPARE, "slices=feature_rows"), "unknown slices part 'feature_rows'; did you mean 'feature-rows'?"),
        ((*RUN, "codec=5"), "codec=5: expected a part or a name, one of: dense, "),
        ((*RUN, "local={}"), "local={}: expected a part or a name, one of: plain, "),
        ((*RUN, "local={lr = -1}"), "local.optimizer=sgd: lr=-1: input should be greater than 0"),
        ((*RUN, "--engine", "vectorised"), "unknown engine 'vectorised'; did you mean 'vectorized'?"),
        ((*COMPARE, "--engine", "sequentially"), "unknown engine 'sequentially'; did you mean 'sequential'?"),
        ((*RUN, "--device", "cuba"), "Unknown device 'cuba'. Available here: cpu"),
        ((*RUN, "--device", "meta"), "Unknown device 'meta'. Available here: cpu"),
        ((*RUN, "--device", "mps:9"), "Unknown device 'mps:9'. Available here: cpu"),
        ((*COMPARE, "--recipes", " , "), "--recipes names no recipe"),
    ],
)
def test_unknown_names(words: tuple[object, ...], saying: str) -> None:
    refuses(*words, "--json", "--out", "out", saying=saying) if words[0] != "inspect" else refuses(
        *words, saying=saying
    )


@pytest.mark.parametrize(
    ("words", "saying"),
    [
        (("runn", "hotcold"), "No such command 'runn'"),
        (("run",), "Missing argument 'TASK'"),
        (("run", "hotcold", "again"), "unexpected extra argument"),
        (("run", "hotcold", "--round", "3"), "No such option: --round"),
        (("list", "--all"), "No such option: --all"),
        (("run", "hotcold", "--rounds"), "'--rounds' requires an argument"),
        (("run", "hotcold", "--set"), "'--set' requires an argument"),
        (("run", "--set", "lr=0.1"), "Missing argument 'TASK'"),
    ],
)
def test_misused_command_line(words: tuple[object, ...], saying: str) -> None:
    refuses(*words, saying=saying)


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1, -20])
@pytest.mark.parametrize("option", ["rounds", "cohort", "eval-every", "chunk"])
def test_options_that_count(option: str, number: int) -> None:
    saying = f"{option.replace('-', '_')}={number}: input should be greater than or equal to 1."
    for command in (RUN, COMPARE):
        refuses(*command, f"--{option}", number, "--out", "out", saying=saying)


@pytest.mark.parametrize(
    ("words", "saying"),
    [
        ((*COMPARE, "--seeds", 0), "seeds=0; give 1 or more."),
        ((*COMPARE, "--seeds", -2), "seeds=-2; give 1 or more."),
        ((*RUN, "--seed", -1), "seed=-1: input should be greater than or equal to 0."),
        ((*RUN, "--seed", 2**64), f"seed={2**64}: input should be less than"),
        ((*COMPARE, "--seed", 2**63 - 1, "--seeds", 2), f"seed={2**63}: input should be less than"),
        ((*RUN, "--cohort", 31), "cohort=31 but the task has 30 clients; give 30 or fewer."),
        ((*COMPARE, "--cohort", 31), "cohort=31 but the task has 30 clients; give 30 or fewer."),
        ((*RUN, "--recipe", "feddd"), "cohort=6 but recipe 'feddd' takes no cohort; leave it out."),
        ((*COMPARE, "--recipes", "feddd"), "cohort=6 but none of the recipes takes a cohort; leave it out."),
        ((*RUN, "--rounds", 10**20), f"rounds={10**20}: input should be less than"),
        ((*RUN, "--chunk", 10**20), f"chunk={10**20}: input should be less than"),
        ((*RUN, "--checkpoint-seconds", -1), "'--checkpoint-seconds'"),
        ((*RUN, "--rounds", "x"), "'--rounds'"),
        ((*RUN, "--rounds", "1.5"), "'--rounds'"),
        ((*RUN, "--cohort", "many"), "'--cohort'"),
        ((*COMPARE, "--seeds", "two"), "'--seeds'"),
    ],
)
def test_options_out_of_range(words: tuple[object, ...], saying: str) -> None:
    refuses(*words, "--out", "out", saying=saying)


OWNERS = {
    "lr": "local.optimizer=sgd",
    "decay": "local.schedule=exponential",
    "clip": "local=plain",
    **dict.fromkeys(("iterations", "epochs", "batch_size"), "local.sampler=batches"),
}


@pytest.mark.parametrize(
    ("assignment", "saying"),
    [
        *((f"{name}=0", f"task hotcold: {name}=0: ") for name in ("clients", "items", "samples", "factors")),
        *((f"{name}=-5", f"task hotcold: {name}=-5: ") for name in ("clients", "items", "zipf", "signal", "data_seed")),
        *(
            (f"{name}=0", f"{OWNERS[name]}: {name}=0: ")
            for name in ("lr", "iterations", "epochs", "batch_size", "clip")
        ),
        *(
            (f"{name}=-1", f"{OWNERS[name]}: {name}=-1: ")
            for name in ("lr", "iterations", "epochs", "batch_size", "decay")
        ),
        *(
            (f"lr={number}", f"local.optimizer=sgd: lr={number}: input should be a finite number")
            for number in ("nan", "inf")
        ),
        ("clip=nan", "local=plain: clip=nan: input should be a finite number"),
        ("signal=inf", "task hotcold: signal=inf: input should be a finite number"),
        ("zipf=nan", "task hotcold: zipf=nan: "),
        ("zipf=4", "task hotcold: zipf=4: "),
        ("clients=1000000000000", "task hotcold: clients=1000000000000: "),
        ("data_seed=99999999999999999999", "task hotcold: data_seed=99999999999999999999: "),
        ("server_lr=0", "server=sgd: server_lr=0: "),
        ("lr=abc", "local.optimizer=sgd: lr='abc': input should be a valid number"),
        ("lr=", "local.optimizer=sgd: lr='': input should be a valid number"),
        ("lr=none", "local.optimizer=sgd: lr=none: input should be a valid number"),
        ("clients=many", "task hotcold: clients='many': "),
        ("clients=1.5", "task hotcold: clients=1.5: "),
        ("clients=[1, 2]", "task hotcold: clients=[1, 2]: "),
        ("items={a=1}", "task hotcold: items={a = 1}: "),
        ("iterations=2.5", "local.sampler=batches: iterations=2.5: "),
        ("replacement=perhaps", "select=uniform: replacement='perhaps': "),
        ("order=backwards", "local.sampler=batches: order='backwards': input should be 'random', 'shuffled' or 'file'"),
        ("weights=heavy", "combine=mean: weights='heavy': input should be 'samples' or 'uniform'"),
        ("lr", "--set 'lr' is not key=value; write for example --set lr=0.1."),
        ("=5", "--set '=5' is not key=value"),
    ],
)
def test_settings(assignment: str, saying: str) -> None:
    key = f"{assignment.partition('=')[0]}="
    others = [word for word in SMALL if key == "=" or not word.startswith(key)]
    refuses("run", *others, "--out", "out", "--set", assignment, saying=saying)
    refuses("compare", *others, "--recipes", "fedavg", "--out", "out", "--set", assignment, saying=saying)


@pytest.mark.parametrize(
    ("recipe", "settings", "saying"),
    [
        ("fedprox", ["mu=-1"], "local.prox=prox: mu=-1: "),
        ("fedsubavg", ["max_coef=0"], "combine=heat: max_coef=0: "),
        ("fedsubavg", ["estimator=best"], "combine=heat: estimator='best': "),
        ("flss", ["rank=0"], "codec=subspace: rank=0: "),
        ("flss", ["every=-1"], "codec=subspace: every=-1: "),
        ("fdrl", ["patterns="], "slices=shared: patterns='': "),
        ("fedavg", ["iterations=2", "epochs=2"], "iterations=2 and epochs=2 are both given; give one."),
        ("flss", ["combine=coverage"], "combine=coverage divides each coordinate by its senders"),
        ("flss", ["slices=channel-dropout"], "slices=channel-dropout uploads values of parts that only the client"),
        ("fdrl", ["replacement=true"], "slices=shared keeps a memory per client"),
        ("fdrl", [], "slices=shared: no parameter matches 'shared.*'; the model has taste.weight"),
        ("fdrl", ["patterns=taste.*,head.*"], "slices=shared: no parameter matches 'head.*'"),
    ],
)
def test_parts_that_do_not_fit(recipe: str, settings: list[str], saying: str) -> None:
    refuses(*RUN, *settings, "--recipe", recipe, "--out", "out", saying=saying)
    refuses(*COMPARE, *settings, "--recipes", recipe, "--out", "out", saying=saying)


def test_sizes_beyond_the_memory() -> None:
    words = ("run", "hotcold", "--set", "clients=1000000", "samples=1000000000")
    refuses(*words, saying="that is too large for this machine (Unable to allocate ")
    for assignment in (f"batch_size={10**20}", f"iterations={10**14}", "lr=1e300"):
        refuses(*RUN, assignment, "--out", "out", saying="less than or equal to")


@pytest.mark.parametrize("rate", [1, -0.1, "nan"])
def test_dropout_rate(rate: object) -> None:
    words = ("run", "hotcold", "--recipe", "feddd", "--set", *TINY, f"rate={rate}", "--out", "out")
    refuses(*words, saying=f"slices=channel-dropout: rate={rate}: ")


def test_a_comparison_is_refused_before_its_first_run() -> None:
    refuses(*COMPARE, "--recipes", "fedavg,fdrl", "--out", "out", saying="slices=shared: no parameter matches")
    refuses(*COMPARE, "combine=coverage", "--recipes", "fedavg,flss", "--out", "out", saying="combine=coverage divides")


@pytest.mark.parametrize("target", ["test_auc", "test_auc=", "test_auc=high", "test_auc=nan", "test_auc=inf"])
def test_a_target_without_a_number(target: str) -> None:
    saying = f"--target {target!r}: {target.partition('=')[2]!r} is not a number; write for example test_auc=0.6."
    refuses(*COMPARE, "--target", target, "--out", "out", saying=saying)


@pytest.mark.parametrize("target", ["", "=0.6", "0.6"])
def test_a_target_without_a_metric(target: str) -> None:
    refuses(*COMPARE, "--target", target, "--out", "out", saying=f"unknown metric {target.partition('=')[0]!r}")


# --- experiment files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "saying"),
    [
        ('task = "hotcold', "exp.toml is not a TOML experiment file ("),
        ("rounds = 3\nrounds = 4", "exp.toml is not a TOML experiment file ("),
        ('task = "hotcold"\nround = 3', "exp.toml: unknown key 'round'; did you mean 'rounds'?"),
        ('task = "hotcold"\n[sets]\nlr = 1.0', "exp.toml: unknown key 'sets'; did you mean 'set'?"),
        ('task = "hotcold"\nrounds = "3"', "exp.toml: rounds='3': input should be a valid integer."),
        ('task = "hotcold"\nrounds = 3.0', "exp.toml: rounds=3.0: input should be a valid integer."),
        ('task = "hotcold"\ncohort = true', "exp.toml: cohort=true: input should be a valid integer."),
        ('task = "hotcold"\nset = 3', "exp.toml: set=3: input should be a valid dictionary."),
        ('task = "hotcold"\nrounds = 0', "exp.toml: rounds=0: input should be greater than or equal to 1."),
        ("task = 3", "exp.toml: task=3: expected a name."),
        ("rounds = 3", "exp.toml: no task is named; add for example task = 'hotcold'."),
        ('task = "hotcol"', "unknown task 'hotcol'; did you mean 'hotcold'?"),
        (
            'task = "hotcold"\n[set]\nlr = "fast"',
            "exp.toml: local.optimizer=sgd: lr='fast': input should be a valid",
        ),
        ('task = "hotcold"\n[set]\nclients = [1, 2]', "exp.toml: task hotcold: clients=[1, 2]: "),
        ('task = "hotcold"\n[set]\nclients = 2024-01-01', "exp.toml: task hotcold: clients=2024-01-01: "),
    ],
)
def test_experiment_files(text: str, saying: str) -> None:
    Path("exp.toml").write_text(text)
    for command in ("run", "compare"):
        refuses(command, "exp.toml", "--out", "out", saying=saying)


def test_experiment_files_that_cannot_be_read() -> None:
    refuses(
        "run", "none.toml", saying="none.toml: there is no such file; give a task's name or a TOML experiment file."
    )
    Path("folder.toml").mkdir()
    refuses("run", "folder.toml", saying="folder.toml is not a TOML experiment file (")
    Path("bytes.toml").write_bytes(b'task = "\xff"')
    refuses("run", "bytes.toml", saying="bytes.toml is not a TOML experiment file (")


# --- run directories ------------------------------------------------------------------------------------------------


def test_out_is_a_file() -> None:
    Path("out").write_text("precious")
    refuses(*RUN, "--out", "out", saying="out is a file, and a run needs a directory; choose another --out")
    refuses(*COMPARE, "--out", "out", saying="choose another --out")


def test_out_holds_something_else() -> None:
    Path("out").mkdir()
    Path("out/thesis.tex").write_text("precious")
    refuses(*RUN, "--out", "out", saying="out holds 'thesis.tex' but no run")


def test_out_holds_another_run() -> None:
    assert fedslice(*RUN, "--out", "out").code == 0
    saying = (
        "out holds a run with other settings: recipe.local.optimizer.lr is 0.1 there and 0.2 here; choose another --out"
    )
    refuses(*RUN, "lr=0.2", "--out", "out", saying=saying)
    refuses(*RUN, "--seed", "1", "--out", "out", "--resume", saying="seed is 0 there and 1 here")
    refuses(*RUN, "--recipe", "fedprox", "--out", "out", saying='recipe.name is "fedavg" there and "fedprox" here')


def test_out_holds_an_unfinished_run() -> None:
    assert fedslice(*RUN, "--out", "out").code == 0
    Path("out/finished.json").unlink()
    saying = "out holds an unfinished run with these settings; add --resume to continue it, or choose another --out"
    refuses(*RUN, "--out", "out", saying=saying)
    assert fedslice(*RUN, "--out", "out", "--resume").code == 0


def test_out_cannot_be_made() -> None:
    Path("file").write_text("")
    refuses(*RUN, "--out", "file/run", saying="no run can be written to file/run (Not a directory)")
    refuses(*RUN, "--out", "x" * 300, saying="File name too long")


# --- data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["movielens", "amazon"])
def test_data_that_are_not_there(task: str) -> None:
    Path("empty").mkdir()
    for command in ("run", "compare", "inspect"):
        refuses(command, task, saying=f"task {task!r} needs data (the ")
        refuses(command, task, "--data", "nowhere", saying="nowhere does not exist, expected the ")
        refuses(command, task, "--data", "empty", saying="empty holds no ")


def test_movielens_files(tmp_path: Path) -> None:
    archive = write_movielens(tmp_path / "zip", zipped=True)
    archive.write_bytes(archive.read_bytes()[:-200])
    refuses("run", "movielens", "--data", archive, saying="ml-1m.zip")
    for name, line, saying in (
        ("columns", "1::2::3", "ratings.dat, line 401: "),
        ("rating", "1::2::good::978300760", "the rating is 'good', expected a whole number from 1 to 5"),
        ("user", "999::2::3::978300760", "the user id is '999', expected a user listed in users.dat"),
    ):
        folder = write_movielens(tmp_path / name)
        with (folder / "ratings.dat").open("a") as ratings:
            ratings.write(line + "\n")
        refuses("run", "movielens", "--data", folder, "--cohort", 5, "--out", "out", saying=saying)
    (folder / "users.dat").unlink()
    refuses("inspect", "movielens", "--data", folder, saying="users.dat is missing")
    other = write_movielens(tmp_path / "100k", variant="100k")
    refuses("run", "movielens", "--data", other, saying="holds ml-100k, expected ml-1m; ask for variant '100k'.")
    refuses("run", "movielens", "--data", other, "--set", "variant=10m", saying="task movielens: variant='10m': ")


def test_amazon_files(tmp_path: Path) -> None:
    folder = write_amazon(tmp_path / "cut")
    file = folder / "amazon_train.tsv.gz"
    file.write_bytes(file.read_bytes()[:-40])
    refuses("run", "amazon", "--data", folder, saying="cannot be read as a gzip archive")
    for name, line, saying in (
        ("columns", "1\t2\t3", "line 361: 3 columns found in '1\\t2\\t3', expected 4 columns"),
        ("item", "1\t2\t33136\t0", "the item id is '33136', expected a whole number from 1 to 33135"),
        ("history", "1\t2\t3\t4,nan", "an item of the history is 'nan', expected whole numbers"),
    ):
        file = write_amazon(tmp_path / name) / "amazon_train.tsv.gz"
        file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + f"{line}\n".encode()))
        refuses("run", "amazon", "--data", file.parent, "--cohort", 5, "--out", "out", saying=saying)
    for assignment in ("history=none", "history=fake", "holdout=0", "holdout=1", "holdout=nan"):
        refuses("run", "amazon", "--data", folder, "--set", assignment, saying="task amazon: ")
