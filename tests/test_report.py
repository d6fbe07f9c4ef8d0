"""From runs to what a report shows: grouping, names, bands, thinning, tables, panels and pictures."""

import itertools
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedslice.core.errors import UserError
from fedslice.panel import Panel
from fedslice.recipes import RECIPES
from fedslice.report import charts, save
from fedslice.report.curves import POINTS, align, best, coinciding, curves, kept
from fedslice.report.gather import aim, gather
from fedslice.report.naming import Settings, labels, short_keys
from fedslice.report.panels import columns, omitted, panels
from fedslice.report.tables import end_table, settings_sheets, summary, target_table
from fedslice.runs.comparison import table
from fedslice.runs.results import legend
from fedslice.runs.stopping import Target
from fedslice.schema import find
from reports import log, run

values = st.sampled_from(["1", "2", "none"])
settings = st.lists(st.dictionaries(st.sampled_from(["a", "p.a", "p.b", "c"]), values), min_size=1, max_size=6)


def bars(title: str = "sizes", note: str = "", **more: Any) -> Panel:
    rows = [{"x": 1, "y": 4}, {"x": 2, "y": 1}]
    return Panel(**{"title": title, "note": note, "mark": "bar", "x": "x", "y": "y", "rows": rows, **more})


EXTREMES = (1e-308, 1e-290, 1.0, 10.0, 1e290, 1e308, 10**400)


def names(*runs: Any) -> list[str]:
    return [method.name for method in gather(runs)[0].methods]


class TestGrouping:
    def test_seeds_are_one_method(self) -> None:
        (group,) = gather([run(seed=2), run(seed=0), run("fedprox"), run(seed=1)])
        assert [(m.name, [r.seed for r in m.runs]) for m in group.methods] == [("fedavg", [0, 1, 2]), ("fedprox", [0])]

    def test_devices_drawn_from_the_seed_do_not_make_methods(self) -> None:
        command = "fedslice run toy --devices {}"
        drawn = [run(seed=k, devices=f"digest{k}", command=command.format("feddd")) for k in range(3)]
        listed = [run(seed=k, devices="listed", command=command.format("mine.csv")) for k in range(2)]
        (group,) = gather([*drawn, *listed])
        assert [(m.name, len(m.runs)) for m in group.methods] == [
            ("fedavg, devices=feddd", 3),
            ("fedavg, devices=listed", 2),
        ]
        assert names(*drawn) == ["fedavg"]
        (method,) = gather(drawn)[0].methods
        assert method.settings["devices"] == "feddd"

    def test_the_order_of_methods_does_not_depend_on_the_order_of_runs(self) -> None:
        runs = [run(name) for name in ("zeta", "fedsubavg", "alpha", "fedavg", "scaffold")]
        expected = [name for name in RECIPES if name in ("fedsubavg", "fedavg", "scaffold")] + ["alpha", "zeta"]
        for some in itertools.permutations(runs, 5):
            assert names(*some) == expected

    def test_settings_that_differ_name_the_method(self) -> None:
        small, large = ({"select": {"name": "uniform", "cohort": cohort}} for cohort in (5, 30))
        found = names(run(parts=large), run("fedprox", parts=large), run(parts=small))
        assert found == ["fedavg, cohort=5", "fedavg, cohort=30", "fedprox"]

    def test_a_part_is_named_by_its_place_and_its_own_settings_only_where_they_differ(self) -> None:
        servers = [{"name": "sgd"}, {"name": "adam", "tau": 0.1, "beta": 1}, {"name": "adam", "tau": 0.2, "beta": 1}]
        found = names(*(run(parts={"server": server}) for server in servers))
        assert sorted(found) == ["fedavg, server=adam, tau=0.1", "fedavg, server=adam, tau=0.2", "fedavg, server=sgd"]

    def test_an_ambiguous_key_is_given_in_full(self) -> None:
        found = names(*(run(parts={"local": {"name": "sgd", "lr": 0.1}, "server": {"lr": lr}}) for lr in (1, 2)))
        assert found == ["fedavg, server.lr=1", "fedavg, server.lr=2"]

    def test_a_setting_that_one_run_lacks_still_tells_them_apart(self) -> None:
        assert names(run(), run(parts={"local": {"name": "sgd", "lr": 0.1, "clip": 5}})) == [
            "fedavg, clip=5",
            "fedavg, clip=unset",
        ]

    def test_tasks_of_one_name_say_which_option_differs(self) -> None:
        tasks = [{"scale": 1, "users": 5}, {"scale": 2, "users": 5}, {"name": "other", "scale": 1}]
        assert [g.title for g in gather([run(task=task) for task in tasks])] == [
            "toy, scale=1",
            "toy, scale=2",
            "other",
        ]

    def test_tasks_that_differ_by_source_alone_say_so(self) -> None:
        found = gather([run(task={"source": source}) for source in ("one file", "another")])
        assert [g.title for g in found] == ["toy, source=one file", "toy, source=another"]

    def test_a_seed_found_twice_counts_once_and_the_longer_log_is_kept(self) -> None:
        short, long = run(rows=log(0.5)), run(rows=log(0.5, 0.6))
        (method,) = gather([short, long])[0].methods
        assert method.runs == [long]
        assert method.repeated == [short]

    def test_no_run_is_a_users_mistake(self) -> None:
        with pytest.raises(UserError, match="no run"):
            gather([])

    @given(settings)
    def test_labels_are_as_different_as_the_settings(self, given: list[Settings]) -> None:
        distinct = [json.loads(text) for text in dict.fromkeys(json.dumps(one, sort_keys=True) for one in given)]
        assert len(set(labels(distinct))) == len(distinct)

    @given(st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(".".join)))
    def test_short_keys_are_unique(self, paths: set[str]) -> None:
        keys = short_keys(paths)
        assert set(keys) == paths
        assert len(set(keys.values())) == len(paths)


class TestCurves:
    def test_mean_and_band_are_of_the_seeds_that_have_the_round(self) -> None:
        (group,) = gather([run(seed=0, rows=log(0.5, 0.7, 0.9)), run(seed=1, rows=log(0.3, None))])
        rounds, band = align(group.methods[0], "test_auc")
        assert rounds == [0, 10, 20]
        assert band.mean == pytest.approx([0.4, 0.7, 0.9])
        assert (band.low, band.high, band.seeds) == ([0.3, 0.7, 0.9], [0.5, 0.7, 0.9], [2, 1, 1])

    def test_columns_hold_every_method_and_one_seed_has_no_band(self) -> None:
        runs = [
            run(seed=0, rows=log(0.5, 0.7)),
            run(seed=1, rows=log(0.3, 0.9, up=3000)),
            run("fedprox", rows=log(0.1)),
        ]
        found = curves(gather(runs)[0])
        y = f"y{[one.name for one in found.metrics].index('test_auc')}"
        assert found.columns["method"] == ["fedavg", "fedavg", "fedprox"]
        assert found.columns["up_bytes"] == [0, 20_000, None]
        assert found.columns[y] == [0.4, 0.8, 0.1]
        assert found.columns[f"{y}_low"] == [0.3, 0.7, None]
        assert found.columns[f"{y}_high"] == [0.5, 0.9, None]

    def test_axes_are_those_along_which_somebody_moves(self) -> None:
        still, moving = run(rows=log(0.5, 0.6, up=0)), run("fedprox", rows=log(0.5, 0.6, clock=[0.0, 2.5]))
        assert [axis.name for axis in curves(gather([still])[0]).axes] == ["round"]
        assert [axis.name for axis in curves(gather([still, moving])[0]).axes] == ["round", "up_bytes", "clock"]

    def test_a_long_curve_keeps_its_ends_and_its_best_points(self) -> None:
        scores = [0.5 + 0.0001 * (place % 7) for place in range(5 * POINTS)]
        scores[777], scores[778] = 0.99, 0.01
        found = curves(gather([run(rows=log(*scores, every=1))])[0])
        rounds = found.columns["round"]
        assert rounds[0] == 0
        assert rounds[-1] == 5 * POINTS - 1
        assert 777 in rounds  # the best test_auc, and the best train_loss as well
        assert len(rounds) <= POINTS + 2

    @given(st.integers(0, 3000), st.integers(2, 400), st.data())
    def test_thinning_is_even_and_loses_nothing_that_matters(
        self, length: int, limit: int, data: st.DataObject
    ) -> None:
        also = data.draw(st.lists(st.integers(0, length - 1), max_size=3)) if length else []
        places = kept(length, limit, also)
        assert places == sorted(set(places))
        assert {*also, *([0, length - 1] if length else [])} <= set(places)
        assert len(places) <= limit + len(also)
        if length > limit:
            assert max(b - a for a, b in itertools.pairwise(places)) <= -(-(length - 1) // (limit - 1))

    @given(st.lists(st.none() | st.floats(-5, 5), max_size=20))
    def test_best_is_lowest_of_a_loss_and_highest_of_a_score(self, found: list[float | None]) -> None:
        there = [value for value in found if value is not None]
        loss, score = best(found, lower=True), best(found, lower=False)
        assert (None if loss is None else found[loss]) == min(there, default=None)
        assert (None if score is None else found[score]) == max(there, default=None)

    def test_what_is_no_measurement_is_left_out(self) -> None:
        rows = log(0.5, float("nan"), float("inf"), 0.6)
        rows[0]["test_auc"] = 10**400
        (group,) = gather([run(rows=rows)])
        assert align(group.methods[0], "test_auc")[1].mean == [None, None, None, 0.6]

    @pytest.mark.parametrize(("up", "scale"), [(1000, "linear"), (9_000, "linear"), (11_000, "log"), (-5, "linear")])
    def test_methods_far_apart_in_cost_are_seen_together(self, up: int, scale: str) -> None:
        found = curves(gather([run(), run("fedprox", rows=log(0.5, 0.6, 0.7, up=up))])[0])
        spec = charts.curves(found, find("test_auc"), found.axes[1], None, 400)
        assert {layer["encoding"]["x"]["scale"]["type"] for layer in spec["layer"]} == {scale}


class TestTables:
    runs = (
        run(seed=0, rows=log(0.5, 0.6, 0.8, clock=[0, 3, 5])),
        run(seed=1, rows=log(0.5, 0.7, 0.7, clock=[0, 4, 6])),
        run("fedprox", seed=0, rows=log(0.5, 0.6, 0.65, clock=[0, 2, 4])),
        run("central", seed=0, rows=log(0.5, 0.9, 0.9, up=0, clock=[0, 2, 4])),
    )
    target = Target("test_auc", 0.7)

    def test_numbers_are_those_of_a_comparison(self) -> None:
        documents = [{"recipe": one.recipe, "seed": one.seed, "metrics": one.rows} for one in self.runs]
        found = summary(gather(self.runs)[0], self.target)
        assert found == table(documents, self.target)

    def test_cost_of_the_target_and_its_best(self) -> None:
        (group,) = gather(self.runs)
        sheet = target_table(group, summary(group, self.target), self.target)
        assert sheet.columns == [
            "method",
            "rounds",
            "uploaded",
            "downloaded",
            "simulated time",
            "seeds that reached it",
        ]
        cells = [[cell.text for cell in row] for row in sheet.rows]
        assert cells == [
            ["fedavg", "15", "15.0 kB", "30.0 kB", "4.5 s", "2 of 2"],
            ["fedprox", "-", "-", "-", "-", "0 of 1"],
            ["central", "10", "0 B", "0 B", "2.0 s", "1 of 1"],
        ]
        assert [[cell.best for cell in row] for row in sheet.rows] == [
            [False, True, False, False, False, False],  # as good as the best: 15 ± 7 rounds; nobody else sends bytes
            [False] * 6,
            [False, True, False, False, True, False],
        ]

    def test_last_values_with_their_deviation(self) -> None:
        (group,) = gather(self.runs)
        sheet = end_table(group, summary(group, None))
        at = sheet.columns.index("test auc")
        assert sheet.rows[0][at].text == f"{mean((0.8, 0.7)):.4f}"
        assert sheet.rows[0][at].detail == f"±{stdev((0.8, 0.7)):.4f}"
        assert [row[at].best for row in sheet.rows] == [False, False, True]
        assert sheet.rows[2][at].detail == ""

    def test_scores_of_clients_have_a_best_and_what_describes_a_run_has_none(self) -> None:
        one, other = (
            run(name, rows=log(0.5, personal_accuracy=[a], stale_loss=[1 - a], trajectory_share_1=[a]))
            for name, a in (("fedavg", 0.3), ("fedper", 0.7))
        )
        (group,) = gather([one, other])
        sheet = end_table(group, summary(group, None))
        best = {name: [row[at].best for row in sheet.rows] for at, name in enumerate(sheet.columns)}
        assert best["personal accuracy"] == best["stale loss"] == [False, True]
        assert not any(best["trajectory share 1"])

    def test_what_the_deviation_cannot_tell_from_the_best_is_marked_with_it(self) -> None:
        scores = {"fedavg": (0.7446, 0.7370), "fedprox": (0.7439, 0.7363), "scaffold": (0.7200, 0.7100)}
        runs = [
            run(name, seed, rows=log(0.5, score)) for name, both in scores.items() for seed, score in enumerate(both)
        ]
        (group,) = gather(runs)
        sheet = end_table(group, summary(group, None))
        at = sheet.columns.index("test auc")
        assert {row[0].text: row[at].best for row in sheet.rows} == {"fedavg": True, "fedprox": True, "scaffold": False}
        words = legend([sheet])
        assert "± is the standard deviation over seeds" in words
        assert "every other whose interval of one ± overlaps" in words
        alone = [one for one in runs if one.seed == 0]
        sheet = end_table(group, summary(gather(alone)[0], None))
        assert [row[at].best for row in sheet.rows].count(True) == 1, "without a deviation there is one best"
        assert "One seed cannot tell" in legend([sheet])

    def test_costs_of_the_target_have_a_deviation_and_the_steps_in_which_they_are_seen(self) -> None:
        (group,) = gather(self.runs)
        sheet = target_table(group, summary(group, self.target), self.target)
        assert sheet.caption == (
            "Until test auc ≥ 0.7: mean over seeds ± standard deviation; seen at evaluations, every 10 rounds"
        )
        first = sheet.rows[0]
        assert [cell.detail for cell in first] == ["", "±7.1", "±7.07 kB", "±14.1 kB", "±0.7 s", ""]
        often = [run(rows=log(0.5, 0.8, every=1))]
        (group,) = gather(often)
        assert "evaluations" not in target_table(group, summary(group, self.target), self.target).caption

    def test_time_to_the_target_relates_to_a_baseline(self) -> None:
        (group,) = gather(self.runs)
        sheet = target_table(group, summary(group, self.target, "fedavg"), self.target, "fedavg")
        at = sheet.columns.index("time relative to fedavg")
        assert [row[at].text for row in sheet.rows] == ["100.0%", "-", "44.4%"]
        (other,) = gather([run("scaffold")])
        assert "t2a" not in summary(other, self.target, "fedavg")[0], "a task without the baseline has no such column"
        two = [run(parts={"local": {"name": "sgd", "lr": lr}}, rows=log(0.5, 0.8, clock=[0, lr])) for lr in (0.1, 0.2)]
        (group,) = gather(two)
        with pytest.raises(UserError, match="baseline 'fedavg' stands for several methods"):
            summary(group, self.target, "fedavg")
        assert summary(group, self.target, "fedavg, lr=0.2")[0]["t2a"] == 0.5

    def test_nothing_is_best_among_methods_that_have_not_come_equally_far(self) -> None:
        (group,) = gather([run(), run("fedprox", rows=log(0.1, 0.2), finished=False)])
        sheet = end_table(group, summary(group, None))
        assert not any(cell.best for row in sheet.rows for cell in row)
        assert [row[0].detail for row in sheet.rows] == ["", "unfinished"]

    def test_equal_numbers_have_no_best(self) -> None:
        (group,) = gather([run(), run("fedprox")])
        assert not any(cell.best for row in end_table(group, summary(group, None)).rows for cell in row)

    def test_logs_with_missing_columns_are_no_obstacle(self) -> None:
        bare = [{"round": 0, "test_auc": 0.9}]
        (group,) = gather([run(seed=0), run(seed=1, rows=bare)])
        (row,) = summary(group, self.target)
        assert (row["reached"], row["up_bytes_to_target"], row["rounds_to_target"]) == (2, None, 10)
        assert (row["test_auc"], row["train_loss"], row["up_bytes"]) == (mean((0.7, 0.9)), None, None)

    def test_settings_shared_and_different(self) -> None:
        (group,) = gather([run(), run("fedprox", parts={"local": {"name": "prox", "lr": 0.1, "mu": 0.01}})])
        different, shared = settings_sheets(group)
        assert different.columns == ["method", "recipe", "local", "mu"]
        assert [[cell.text for cell in row] for row in different.rows] == [
            ["fedavg", "fedavg", "sgd", "-"],
            ["fedprox", "fedprox", "prox", "0.01"],
        ]
        assert [tuple(cell.text for cell in row) for row in shared.rows] == [
            ("select", "uniform"),
            ("cohort", "5"),
            ("lr", "0.1"),
            ("rounds", "100"),
        ]

    def test_the_first_metric_is_the_targets_else_a_test_score(self) -> None:
        (group,) = gather([run()])
        assert group.metric(None) == "test_auc"
        assert group.metric(Target("train_loss", 0.1)) == "train_loss"
        assert gather([run(rows=[])])[0].metric(None) is None

    def test_a_target_nobody_measures_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(UserError, match="did you mean 'test_auc'"):
            aim(Target("test_acu", 0.5), gather([run()]))
        with pytest.raises(UserError, match="not a number"):
            aim(Target("test_auc", float("nan")), gather([run()]))


class TestPanels:
    def test_equal_panels_are_shown_once_and_different_ones_by_method(self) -> None:
        runs = [
            run(panels=[bars(), bars("own", note="a")]),
            run("fedprox", panels=[bars(), bars("own", note="b"), bars("more")]),
        ]
        found = panels(gather(runs)[0])
        assert [[(one.panel.title, one.label) for one in side] for side in found] == [
            [("sizes", "")],
            [("own", "fedavg"), ("own", "fedprox")],
            [("more", "fedprox")],
        ]

    def test_of_several_seeds_the_lowest_is_shown(self) -> None:
        runs = [run(seed=seed, panels=[bars(note=str(seed))]) for seed in (2, 1)]
        ((shown,),) = panels(gather(runs)[0])
        assert (shown.panel.note, shown.label) == ("1", "fedavg, seed 1")

    def test_two_panels_of_one_title_are_two(self) -> None:
        found = panels(gather([run(panels=[bars(note="a"), bars(note="b")])])[0])
        assert [[one.panel.note for one in side] for side in found] == [["a"], ["b"]]

    def test_bars_over_numbers_touch(self) -> None:
        rows = [{"x": x, "y": 1} for x in (1.0, 2.0, 4.0)]
        found = columns(bars(rows=rows))
        assert (found["x_low"], found["x_high"]) == ([0.5, 1.5, 3.5], [1.5, 2.5, 4.5])

    def test_a_logarithmic_axis_tells_what_it_cannot_show(self) -> None:
        panel = bars(mark="point", log=["x"], rows=[{"x": x, "y": 1} for x in (-1, 0, None, 10, 100)])
        assert columns(panel)["x"] == [10, 100]
        assert omitted(panel) == 2
        assert omitted(bars(log=["y"], rows=[{"x": 1, "y": 0}])) == 0


class TestPictures:
    @pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG\r\n"), ("svg", b"<svg"), ("pdf", b"%PDF-")])
    def test_files_are_what_they_are_called(self, tmp_path: Path, kind: Any, magic: bytes) -> None:
        rows = [{"round": 0, "test_auc": 0.4, "up_bytes": 0}, {"round": 1, "test_auc": 0.6, "up_bytes": 0}]
        (path,) = save([run(rows=rows)], tmp_path / "new" / "folder", kind=kind, target=Target("test_auc", 0.5))
        assert path.name == f"toy-test-auc-over-round.{kind}"
        assert path.read_bytes().startswith(magic)
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_svg_names_methods_axes_and_target(self, tmp_path: Path) -> None:
        runs = [run("<b>&one", rows=log(0.4, 0.6)), run("two", rows=log(0.5, 0.7))]
        found = {path.stem: path.read_text() for path in save(runs, tmp_path, target=Target("test_auc", 0.55))}
        assert len(found) == 4
        over_bytes = found["toy-test-auc-over-uploaded-bytes"]
        for words in ("&lt;b&gt;&amp;one", "two", "uploaded bytes", "target 0.55", "10 kB"):
            assert f">{words}<" in over_bytes or f"{words})<" in over_bytes

    @pytest.mark.parametrize(
        "panel",
        [
            bars(),
            bars(log=["y"]),
            bars(log=["x", "y"]),
            bars(rows=[{"x": "a", "y": 1}, {"x": "b", "y": None}]),
            bars(color="z", rows=[{"x": "a", "y": 1, "z": 1}, {"x": "a", "y": 2, "z": None}]),
            bars(mark="line", color="z", rows=[{"x": 1, "y": 1, "z": "p"}, {"x": 2, "y": 2, "z": "p"}]),
            bars(mark="point", log=["x"]),
            bars(rows=[]),
            *(
                bars(mark=mark, log=log, rows=[{"x": x, "y": y} for x, y in itertools.product(EXTREMES, EXTREMES)])
                for mark in ("bar", "line", "point")
                for log in ([], ["x"], ["y"], ["x", "y"])
            ),
            bars(rows=[{"x": 1, "y": 1}]),
            bars(color="\\", rows=[{"x": 1, "y": 1, "\\": "\\"}]),
            Panel(title="../../odd", mark="point", x="a.b[0]'\"", y='\\\n\\"', rows=[{"a.b[0]'\"": 1, '\\\n\\"': 2}]),
        ],
    )
    def test_every_kind_of_panel_is_drawn_in_the_folder(self, tmp_path: Path, panel: Panel) -> None:
        (path,) = save([run(rows=[], panels=[panel])], tmp_path)
        assert path.parent == tmp_path
        assert "NaN" not in path.read_text()
        kind = {"bar": "rect", "point": "symbol", "line": "line"}[panel.mark]
        groups = [g for g in ElementTree.parse(path).iter() if f"mark-{kind} role-mark" in g.get("class", "")]
        marks = [mark for group in groups for mark in group]
        assert len(marks) == (1 if panel.mark == "line" else len(columns(panel)["x"]))

    def test_a_folder_that_is_a_file_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match="no figure can be written"):
            save([run()], tmp_path / "file")


class TestColors:
    # Machado, Oliveira and Fernandes (2009), severity 1: how linear RGB is seen without red, green or blue cones.
    EYES = (
        ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
        ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
        ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
    )

    @pytest.mark.parametrize("kind", ["light", "dark"])
    def test_ten_colors_can_be_told_apart_by_every_eye(self, kind: Any) -> None:
        colors = charts.theme(kind)["range"]["category"]
        assert len(colors) == 10
        for eye in self.EYES:
            seen = [self._lab(np.clip(np.array(eye) @ self._linear(color), 0, 1)) for color in colors]
            assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12

    def test_lines_differ_by_dashes_and_none_covers_the_gaps_of_another(self) -> None:
        found = curves(gather([run(f"m{place}") for place in range(10)])[0])
        spec = charts.curves(found, find("test_auc"), found.axes[0], None, 400)
        line = next(layer for layer in spec["layer"] if "strokeDash" in layer["encoding"])
        first, *others = line["encoding"]["strokeDash"]["scale"]["range"]
        assert first == [1, 0], "the whole line lies below the others"
        assert all(0 not in dash for dash in others)
        assert len({tuple(dash) for dash in others}) == 9

    def test_curves_that_hide_each_other_are_named(self) -> None:
        found = curves(gather([run("fedavg"), run("fedprox"), run("scaffold", rows=log(0.1, 0.2, 0.3))])[0])
        assert coinciding(found) == [["fedavg", "fedprox"]]

    def test_more_methods_differ_by_their_dashes(self) -> None:
        found = curves(gather([run(f"m{place}") for place in range(25)])[0])
        spec = charts.curves(found, find("test_auc"), found.axes[0], None, 400)
        line = next(layer for layer in spec["layer"] if "strokeDash" in layer["encoding"])
        dashes = line["encoding"]["strokeDash"]["scale"]["range"]
        assert len({(place % 10, tuple(dash)) for place, dash in enumerate(dashes)}) == 25

    @staticmethod
    def _linear(color: str) -> Any:
        parts = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)

    @staticmethod
    def _lab(linear: Any) -> Any:
        to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        xyz = to_xyz @ linear / np.array([0.9505, 1, 1.089])
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
