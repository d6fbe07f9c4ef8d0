"""The page as a reader uses it, in Chromium: what is drawn, what a hand does, and that nothing leaves the file."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedslice.panel import Panel
from fedslice.report import write
from fedslice.report.page import picture
from fedslice.runs.reading import find, read
from fedslice.runs.stopping import Target

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"),
]

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
SCORES = {("fedavg", 0): (0.50, 0.55, 0.60), ("fedavg", 1): (0.52, 0.59, 0.70), ("fedsubavg", 0): (0.5, 0.7, 0.8)}
RICH = Panel(title="Rows by heat", mark="bar", x="heat", y="rows", rows=[{"heat": k, "rows": 9 - k} for k in range(8)])


def store(place: Path, recipe: str, seed: int, rows: list[dict[str, Any]]) -> None:
    """A run directory as a run leaves it."""
    folder = place / f"toy-{recipe}-{seed}"
    folder.mkdir(parents=True)
    config = {
        "task": {"name": "<script>toy", "source": "made up"},
        "recipe": {"name": recipe},
        "seed": seed,
        "rounds": rows[-1]["round"],
    }
    documents = {"config": config, "finished": {"metric_rows": len(rows)}, "origin": {"command": "fedslice run toy"}}
    for name, document in (*documents.items(), ("panels", [RICH.model_dump()])):
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for (recipe, seed), scores in SCORES.items():
        rows = [
            {"round": 10 * k, "train_loss": 1 - score, "test_auc": score, "up_bytes": 10**6 * k, "down_bytes": 0}
            for k, score in enumerate(scores)
        ]
        store(place, recipe, seed, rows)
    out = place / "report.html"
    write([read(path) for path in find([place])], out, target=Target("test_auc", 0.65))
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def show(browser: Any, page: Path, *, width: int = 1280, scheme: str = "light") -> None:
    """Open the page and wait for its curves."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())
    wait(browser, "document.querySelector('[data-role=curves] :is(svg, canvas)')")


def wait(browser: Any, condition: str) -> Any:
    """What a condition comes to, as soon as it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 30, poll_frequency=0.05).until(lambda b: b.execute_script(f"return {condition}"))


def texts(browser: Any, selector: str = "[data-role=curves] svg text") -> list[str]:
    return browser.execute_script(f"return [...document.querySelectorAll('{selector}')].map((e) => e.textContent)")


def lines(browser: Any) -> list[list[float]]:
    """Opacity and every coordinate of each curve."""
    script = """return [...document.querySelectorAll('[data-role=curves] .mark-line.role-mark path')].map(
        (e) => [e.getAttribute('opacity') ?? '1', e.getAttribute('d')])"""
    return [[float(opacity), *map(float, re.findall(r"-?[\d.]+", d))] for opacity, d in browser.execute_script(script)]


def mouse(browser: Any, kind: str, x: float, y: float) -> None:
    buttons = {"button": "none" if kind == "mouseMoved" else "left", "clickCount": 0 if kind == "mouseMoved" else 1}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **buttons})


def click(browser: Any, name: str) -> None:
    """On a name in the legend."""
    script = """const e = [...document.querySelectorAll('[data-role=curves] .role-legend-label text')]
        .find((e) => e.textContent === arguments[0]); e.scrollIntoView({block: 'center'});
        const box = e.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]"""
    at = browser.execute_script(script, name)
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        mouse(browser, kind, *at)


def choose(browser: Any, role: str, title: str) -> None:
    """As a hand does with a select, and wait for the new chart."""
    script = """const s = document.querySelector(`[data-role=${arguments[0]}]`);
        document.querySelector('[data-role=curves] svg').dataset.old = '';
        s.value = [...s.options].find((o) => o.text === arguments[1]).value;
        s.dispatchEvent(new Event('change', {bubbles: true}))"""
    browser.execute_script(script, role, title)
    wait(browser, "document.querySelector('[data-role=curves] svg:not([data-old])')")


def test_it_opens_without_a_complaint_and_without_the_network(browser: Any, page: Path) -> None:
    browser.get_log("performance")
    browser.get_log("browser")
    show(browser, page)
    browser.execute_script("scrollTo(0, document.body.scrollHeight)")
    wait(browser, "document.querySelector('[data-chart=panel-1] svg')")
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in asked
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert [url for url in asked if url.startswith("file:") and url != page.as_uri()] == []


def test_no_text_of_a_picture_runs(browser: Any, tmp_path: Path) -> None:
    """The page of `features`, with a title, axes and a class that try."""
    nasty = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>"
    rows = [{nasty: k, "y": k, "class": nasty if k % 2 else "plain"} for k in range(9)]
    out = tmp_path / "map.html"
    out.write_text(picture(Panel(title=nasty, mark="point", x=nasty, y="y", color="class", rows=rows), 300))
    browser.get_log("browser")
    browser.get(out.as_uri())
    wait(browser, "document.querySelectorAll('.chart .mark-symbol.role-mark path').length === 9")
    assert browser.execute_script("return window.owned") is None
    assert texts(browser, "h1") == [nasty]
    assert browser.get_log("browser") == []


def test_the_network_is_forbidden(browser: Any, page: Path) -> None:
    show(browser, page)
    script = "fetch('data:,x').then(() => arguments[0]('fetched'), () => arguments[0]('refused'))"
    assert browser.execute_async_script(script) == "refused"


def test_curves_table_panel_and_plain_text(browser: Any, page: Path) -> None:
    show(browser, page)
    assert len(lines(browser)) == 2
    assert {"fedavg", "fedsubavg", "round", "test auc (grey line: target 0.65)"} <= set(texts(browser))
    assert texts(browser, "h2") == ["<script>toy"]
    assert texts(browser, "caption")[0].startswith("Until test auc ≥ 0.65: mean over seeds ± standard deviation")
    rows = [re.sub(r"\s+", " ", row) for row in texts(browser, "table:has(tbody) tbody tr")]
    assert any(row.startswith("fedsubavg") and "1 of 1" in row for row in rows)
    browser.execute_script("scrollTo(0, document.body.scrollHeight)")
    wait(browser, "document.querySelectorAll('[data-chart=panel-1] .mark-rect.role-mark path').length === 8")


def test_a_point_tells_its_numbers(browser: Any, page: Path) -> None:
    show(browser, page)
    script = """const e = document.querySelectorAll('[data-role=curves] .mark-line.role-mark path')[arguments[0]];
        e.scrollIntoView({block: 'center'});
        const m = e.getScreenCTM(), [x, y] = e.getAttribute('d').match(/-?[\\d.]+/g).slice(2, 4).map(Number);
        return [m.a * x + m.e, m.d * y + m.f]"""
    for line, expected in (
        (0, ("fedavg", "10", "0.5700", "2: 0.5500 to 0.5900")),
        (1, ("fedsubavg", "10", "0.7000", "1")),
    ):
        x, y = browser.execute_script(script, line)
        for step in (-30, 1, 0):  # over the border of another point's cell, and on
            mouse(browser, "mouseMoved", x + step, y + step)
        said = f"document.querySelector('#vg-tooltip-element.visible')?.innerText.includes('{expected[0]}\\n')"
        wait(browser, said)
        assert texts(browser, "#vg-tooltip-element td.value") == list(expected)


def test_the_legend_isolates_and_gives_back(browser: Any, page: Path) -> None:
    show(browser, page)
    assert [line[0] for line in lines(browser)] == [1, 1]
    click(browser, "fedsubavg")
    wait(
        browser, "document.querySelector('[data-role=curves] .mark-line.role-mark path').getAttribute('opacity') < 0.5"
    )
    assert [line[0] == 1 for line in lines(browser)] == [False, True]
    click(browser, "fedsubavg")
    wait(browser, "document.querySelector('[data-role=curves] .mark-line.role-mark path').getAttribute('opacity') == 1")
    assert [line[0] for line in lines(browser)] == [1, 1]


def test_metric_and_axis_can_be_chosen(browser: Any, page: Path) -> None:
    show(browser, page)
    before = lines(browser)
    choose(browser, "metric", "train loss")
    assert "train loss" in texts(browser)
    after = lines(browser)
    assert after != before
    assert [line[2] < line[-1] for line in before] == [False, False]  # scores go up, where y is small
    assert [line[2] < line[-1] for line in after] == [True, True]
    choose(browser, "axis", "uploaded bytes")
    assert {"uploaded bytes", "2 MB"} <= set(texts(browser))


@pytest.mark.parametrize(("width", "scheme"), [*product((1280, 400), ("light", "dark"))])
def test_nothing_overflows_and_all_can_be_read(browser: Any, page: Path, width: int, scheme: str) -> None:
    show(browser, page, width=width, scheme=scheme)
    for details in range(browser.execute_script("return document.querySelectorAll('details').length")):
        browser.execute_script(f"document.querySelectorAll('details')[{details}].open = true")
    browser.execute_script("scrollTo(0, document.body.scrollHeight)")
    wait(browser, "document.querySelector('[data-chart=panel-1] svg')")
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    script = """const page = getComputedStyle(document.body).backgroundColor;
        const words = ['p', 'h1', 'h2', 'h3', 'td', 'th', 'thead th', 'caption', 'summary', 'pre', 'select', '.hint']
            .map((s) => getComputedStyle(document.querySelector(s)).color);
        const texts = document.querySelectorAll('[data-role=curves] svg text');
        const drawn = [...texts].map((e) => getComputedStyle(e).fill);
        return [page, [...words, ...drawn]]"""
    background, inks = browser.execute_script(script)
    assert (luminance(background) > 0.5) == (scheme == "light")
    for ink in inks:
        light, dark = sorted((luminance(ink) + 0.05, luminance(background) + 0.05), reverse=True)
        assert light / dark >= 4.5, ink


def test_colors_and_legend_follow_the_reader(browser: Any, page: Path) -> None:
    show(browser, page)
    name = "document.querySelector('[data-role=curves] .role-legend-label text')"
    fill = browser.execute_script(f"return getComputedStyle({name}).fill")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    wait(browser, f"{name} && getComputedStyle({name}).fill !== '{fill}'")
    axis = "document.querySelector('[data-role=curves] .role-axis')"
    assert browser.execute_script(f"return {name}.getBoundingClientRect().y < {axis}.getBoundingClientRect().bottom")
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wait(browser, f"{name} && {name}.getBoundingClientRect().y > {axis}.getBoundingClientRect().bottom")


def test_paper_is_white_and_complete(browser: Any, page: Path) -> None:
    show(browser, page, scheme="dark", width=400)
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    title = "document.querySelector('[data-role=curves] .role-axis-title text')"
    wait(browser, f"document.querySelectorAll('.chart svg').length === 2 && {title}")
    assert luminance(browser.execute_script(f"return getComputedStyle({title}).fill")) < 0.2


def test_a_hundred_runs_of_a_thousand_evaluations(browser: Any, tmp_path: Path) -> None:
    for recipe, seed in product(range(20), range(5)):
        rows = [
            {
                "round": t,
                **{
                    f"test_{k}": math.exp(-t / (100 + 10 * recipe)) + 0.01 * math.sin(t * (seed + k + 1))
                    for k in range(6)
                },
                "up_bytes": 1000 * t + seed,
                "down_bytes": 1000 * t,
                "clock": 1.7 * t + seed,
            }
            for t in range(1000)
        ]
        store(tmp_path / "runs", f"method{recipe}", seed, rows)
    out = tmp_path / "report.html"
    write([read(path) for path in find([tmp_path / "runs"])], out)
    assert out.stat().st_size < 15_000_000
    browser.get("about:blank")
    show(browser, out)
    timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
    loaded, drawn = browser.execute_script(f"return [{timing}, performance.now()]")
    size = out.stat().st_size / 1e6
    print(f"\nbig page: {size:.1f} MB, loaded after {loaded / 1000:.2f} s, curves drawn after {drawn / 1000:.2f} s")


def luminance(color: str) -> float:
    """Relative luminance of rgb(…), as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
