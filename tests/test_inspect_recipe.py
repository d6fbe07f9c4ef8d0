"""`fedslice inspect TASK --recipe NAME` tells what a client reveals, from the messages that it really sends."""

from functools import cache
from typing import Any

import pytest
import torch

from command import TINY, fedslice
from fedslice.core.encodings import Bits, Counts, Floats, Ids, Places
from fedslice.core.header import HEADER, HEADER_BYTES
from fedslice.recipes import RECIPES
from fedslice.training.devices import Devices
from fedslice.training.experiment import Experiment
from fedslice.training.reveal import Revealed, reveal
from toys import SIZES, begun, fitting
from two_sides import COMBINED

pytestmark = pytest.mark.usefixtures("elsewhere")
ONCE, FIRST, LATER = "once", "in a client's first round", "in later rounds"
ALWAYS, SOME, HEADERS = "in every round", "in some rounds", "in front of every message"
TRAVELLING = [name for name in RECIPES if name != "centralsgd"]


@cache
def revealed(name: str) -> tuple[Experiment, list[Revealed]]:
    """What a recipe reveals of everyone in a small federation, and a run of two rounds of the same."""
    task, recipe = fitting(name)
    if recipe.select.label == "uniform":
        recipe = recipe.with_options({"select": "everyone"})
    experiment = begun(task, recipe, rounds=2, chunk=2)
    rows = reveal(begun(task, recipe, rounds=2, chunk=2))
    experiment.run()
    return experiment, rows


def fields(name: str, message: str, when: str | None = None) -> set[str]:
    """The fields of a kind of message."""
    return {row.field for row in revealed(name)[1] if row.message == message and when in (None, row.when)}


def one(name: str, message: str, field: str) -> Revealed:
    """The only row of a field."""
    (row,) = [row for row in revealed(name)[1] if (row.message, row.field) == (message, field)]
    return row


# --- what recipes reveal


def test_fedavg_reveals_its_number_of_samples_once_and_an_update_each_round() -> None:
    experiment, _ = revealed("fedavg")
    size = experiment.spec.size
    assert fields("fedavg", "enrolment") == fields("fedavg", "enrolment", ONCE) == {"samples"}
    assert one("fedavg", "enrolment", "samples").about == "how many training samples it has"
    assert not fields("fedavg", "request")
    assert fields("fedavg", "upload") == fields("fedavg", "upload", ALWAYS) == {"values"}
    update = one("fedavg", "upload", "values")
    assert update.about == "how its training changed each value"
    assert update.encoding == "float32"
    assert update.entries == (size, size, size)
    assert update.bytes == (4 * size, 4 * size, 4 * size)
    assert one("fedavg", "download", "values").about == "values of the model"


def test_a_mean_of_equals_reveals_nothing_at_enrolment() -> None:
    assert not fields("fdrl", "enrolment")
    assert fields("fdrl", "welcome") == {"seed", "token"}


def test_fedsubavg_reveals_its_rows_at_enrolment_and_in_requests() -> None:
    experiment, _ = revealed("fedsubavg")
    rows = {f"rows/{group.name}" for group in experiment.spec.groups}
    assert fields("fedsubavg", "enrolment", ONCE) == {"samples", *rows}
    assert fields("fedsubavg", "request", ALWAYS) == rows
    for sets in experiment.task.index_sets:
        row = one("fedsubavg", "request", f"rows/{sets.tables[0]}")
        assert row.encoding == "ascending ids"
        counts = sets.axis(torch.arange(len(SIZES))).counts
        assert row.entries is not None
        assert (row.entries.min, row.entries.max) == (counts.min(), counts.max())
        assert all(table in row.about for table in sets.tables)
    assert fields("submodelavg", "enrolment") == {"samples"}, "without heat the server need not know rows beforehand"


def test_oort_reveals_speed_and_losses() -> None:
    assert fields("oort", "enrolment", ONCE) == {"samples", "pace", "held"}
    assert fields("oort", "upload", ALWAYS) == {"values", "squares"}
    assert "loss" in one("oort", "upload", "squares").about
    assert fields("fedcs", "enrolment") == {"samples", "pace", "held"}
    assert fields("fedcs", "upload") == {"values"}


def test_feddd_reveals_labels_and_pace_and_in_each_round_its_loss_and_its_channels() -> None:
    task, recipe = fitting("feddd", rate=None)
    rows = reveal(begun(task, recipe, rounds=2, devices=Devices.drawn(len(SIZES), 0)))
    by = {(row.message, row.field): row for row in rows}
    assert {field for message, field in by if message == "enrolment"} == {"samples", "labels", "pace"}
    assert by["enrolment", "labels"].entries == (3, 3, 3), "a number per class"
    assert by["enrolment", "pace"].about == "how many seconds its device takes to download, train and upload"
    assert {field for message, field in by if message == "upload"} == {
        "channels/first", "channels/second", "values", "loss",
    }  # fmt: skip
    assert by["upload", "values"].about == "values after its training"
    assert by["download", "rate"].when == ALWAYS


def test_a_client_of_feddd_is_sent_the_whole_model_at_first_and_later_what_it_has_sent() -> None:
    rows = [row for row in revealed("feddd")[1] if (row.message, row.field) == ("download", "values")]
    whole = revealed("feddd")[0].spec.size
    assert [row.when for row in rows] == [FIRST, LATER]
    assert rows[0].entries == (whole, whole, whole)
    assert rows[1].entries == one("feddd", "upload", "values").entries


def test_scaffold_exchanges_control_variates_besides() -> None:
    assert fields("scaffold", "download", ALWAYS) == {"values", "c"}
    assert fields("scaffold", "upload", ALWAYS) == {"values", "variate"}


def test_newcomers_of_a_private_block_are_sent_it_once() -> None:
    assert fields("fdrl", "download", FIRST) == {"first"}
    assert fields("fdrl", "upload") == {"values"}
    private, shared = one("fdrl", "download", "first"), one("fdrl", "upload", "values")
    assert private.entries is not None
    assert shared.entries is not None
    assert private.entries.max + shared.entries.max == revealed("fdrl")[0].spec.size


def test_signs_take_a_bit_each() -> None:
    signs = one("sign", "upload", "sign")
    size = revealed("sign")[0].spec.size
    assert signs.encoding == "1 bit"
    assert signs.entries == (size, size, size)
    assert signs.bytes is not None
    assert signs.bytes.max == (size + 7) // 8


def test_clients_of_stc_are_sent_the_model_at_first_and_steps_later() -> None:
    assert "values" in fields("stc", "download", FIRST)
    assert fields("stc", "download", LATER) == {"steps"}
    assert one("stc", "upload", "places").encoding == "Golomb code"


def test_coefficients_of_flss_are_told_although_two_rounds_do_not_show_them() -> None:
    task, recipe = fitting("flss")
    rows = reveal(begun(task, recipe.with_options({"warmup": 5}), rounds=9))
    coefficients = [row for row in rows if row.field == "coefficients"]
    assert [(row.when, row.message, row.entries) for row in coefficients] == [(SOME, "upload", (3, 3, 3))]
    basis = [row for row in rows if row.field == "basis"]
    size = 3 * sum(shape.numel() for shape in task.shapes.values())
    assert [(row.when, row.message, row.entries) for row in basis] == [(SOME, "download", (size, size, size))]
    steps = [row for row in rows if row.field == "steps"]
    assert [(row.entries, row.bytes) for row in steps] == [(None, None)]


def test_nothing_travels_where_all_data_lie_in_one_place() -> None:
    assert revealed("centralsgd")[1] == []


def test_who_trains_alone_sends_no_field_and_is_sent_its_first_values() -> None:
    assert not fields("local", "upload")
    assert not fields("local", "request")
    assert fields("local", "download") == fields("local", "download", FIRST) == {"first"}


# --- what every row says


@pytest.mark.parametrize("name", TRAVELLING)
def test_every_field_says_in_plain_words_what_it_is(name: str) -> None:
    for row in revealed(name)[1]:
        assert row.about, row
        assert row.about == row.about.strip(".")
        assert row.encoding


@pytest.mark.parametrize("name", COMBINED)
def test_fields_of_combinations_say_so_too(name: str) -> None:
    make, recipe = COMBINED[name]
    rows = reveal(begun(make((3, 7, 1, 12, 5, 4, 6, 2)), recipe, rounds=2))
    assert all(row.about for row in rows)
    sent = {"scale", "sign"} if recipe.codec.label == "sign" else {"values"}
    assert {row.field for row in rows if row.message == "upload"} >= sent


@pytest.mark.parametrize("name", TRAVELLING)
def test_bytes_are_those_of_the_ledger(name: str) -> None:
    """Everyone takes part in both rounds, and so a run's books lie between the least and the most that are told."""
    experiment, rows = revealed(name)
    clients = len(experiment.task.federation) if experiment.recipe.select.label == "everyone" else None
    if clients is None:
        cohort = experiment.recipe.select.choose(experiment.server.states["select"], 0)
        clients = len(cohort.clients)
    books = experiment.ledger
    exact = {row.field: row for row in rows if row.when == ONCE}
    assert exact.keys() == books.enrol.keys()
    everyone = len(experiment.task.federation)
    for field, row in exact.items():
        assert row.bytes is not None
        assert everyone * row.bytes.min <= books.enrol[field] <= everyone * row.bytes.max, field
    if experiment.recipe.select.label == "oort":  # later cohorts are others
        return
    for booked, messages in ((books.up, ("request", "upload")), (books.down, ("download",))):
        least = dict.fromkeys(booked, 0)
        most = dict.fromkeys(booked, 0)
        for row in rows:
            if row.message in messages and row.when in (ALWAYS, FIRST, LATER):
                assert row.bytes is not None
                rounds = 2 if row.when == ALWAYS else 1
                least[row.field] += rounds * clients * row.bytes.min
                most[row.field] += rounds * clients * row.bytes.max
        assert {name for name, size in booked.items() if size} == {name for name, size in most.items() if size}
        for field, size in booked.items():
            assert least[field] <= size <= most[field], field


@pytest.mark.parametrize("name", ["fedavg", "fedsubavg", "flss"])
def test_the_header_has_the_bytes_of_every_header(name: str) -> None:
    rows = [row for row in revealed(name)[1] if row.when == HEADERS]
    assert [row.field for row in rows if row.field != "lengths"] == list(HEADER)
    assert sum(row.bytes.max for row in rows if row.bytes and row.field != "lengths") == HEADER_BYTES


def test_encodings_have_words() -> None:
    words = [encoding.words for encoding in (Floats(torch.float64), Bits(), Bits(3), Counts(16), Ids(), Places(0.1))]
    assert words == ["float64", "1 bit", "3 bits", "16-bit count", "ascending ids", "Golomb code"]


# --- the command


def test_the_command_prints_a_table_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = fedslice("inspect", "hotcold", "--recipe", "fedsubavg", "--set", *TINY)
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    titles = [line for line in done.out.splitlines() if ", once" in line or ", in " in line]
    assert titles == [
        "welcome, once",
        "enrolment, once",
        "request, in every round",
        "download, in every round",
        "upload, in every round",
        "header, in front of every message",
    ]
    assert "ascending ids" in done.out


def document(*words: str) -> Any:
    return fedslice("inspect", "hotcold", *words, "--json", "--set", *TINY).document


def test_as_json_it_is_one_document() -> None:
    found = document("--recipe", "fedavg")
    assert found["task"] == "hotcold"
    assert found["recipe"] == "fedavg"
    (samples,) = [row for row in found["rows"] if row["message"] == "enrolment"]
    assert samples == {
        "when": "once",
        "message": "enrolment",
        "field": "samples",
        "about": "how many training samples it has",
        "encoding": "32-bit count",
        "entries": {"min": 1, "median": 1.0, "max": 1},
        "bytes": {"min": 4, "median": 4.0, "max": 4},
    }


def test_settings_count_and_devices_may_be_given() -> None:
    found = fedslice("inspect", "hotcold", "--recipe", "fedavg", "--json", "--set", *TINY, "codec=sign")
    assert {row["field"] for row in found.document["rows"] if row["message"] == "upload"} == {"scale", "sign"}
    found = document("--recipe", "oort", "--devices", "feddd")
    assert {"pace", "held"} <= {row["field"] for row in found["rows"] if row["message"] == "enrolment"}


def test_pooled_data_reveal_everything_without_a_message() -> None:
    assert document("--recipe", "centralsgd")["rows"] == []
    assert "nothing travels, as all data lie in one place" in " ".join(
        fedslice("inspect", "hotcold", "--recipe", "centralsgd", "--set", *TINY).out.split()
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--recipe", "fedavgg"), "unknown recipe 'fedavgg'; did you mean 'fedavg'?"),
        (("--recipe", "oort"), "select=oort needs to know how fast devices are, but the run has none; add --devices"),
        (("--recipe", "fedntd"), "local=fedntd needs labels that are class numbers"),
        (("--recipe", "fedavg", "--conditioning"), "--conditioning looks at a task alone; leave --recipe out."),
        (("--devices", "feddd"), "--devices feddd belongs to --recipe"),
        (("--recipe", "fedavg", "--set", "lrr=1"), "unknown setting 'lrr'"),
    ],
)
def test_misuse_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    done = fedslice("inspect", "hotcold", *words)
    assert done.code == 2
    assert done.out == ""
    assert says in done.err
    assert done.err.count("\n") == 1
