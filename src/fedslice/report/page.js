"use strict";
// Charts are drawn when they come near the screen, and again when the colours, the room or the choice change.
(() => {
  const NARROW = 640; // pixels, below which a legend stands under its chart
  const MANY = 4000; // points, above which a canvas is faster than SVG
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const themes = JSON.parse(document.getElementById("themes").textContent);
  const contents = new Map();
  const drawn = new Map(); // chart -> { view, narrow }, or null while it is being made
  let printing = false;

  const content = (chart) => {
    const section = chart.closest("section");
    if (!contents.has(section)) {
      contents.set(section, JSON.parse(section.querySelector("[data-role=content]").textContent));
    }
    return contents.get(section);
  };

  const rows = (columns) => {
    const names = Object.keys(columns);
    return (columns[names[0]] ?? []).map((_, at) => Object.fromEntries(names.map((name) => [name, columns[name][at]])));
  };

  const isNarrow = (chart) => chart.clientWidth < NARROW;

  const config = (chart) => {
    const theme = themes[dark.matches && !printing ? "dark" : "light"];
    const room = isNarrow(chart)
      ? { orient: "bottom", direction: "vertical", columns: 1, labelLimit: chart.clientWidth - 60 }
      : { orient: "right", labelLimit: chart.clientWidth / 3 };
    return { ...theme, legend: { ...theme.legend, ...room } };
  };

  const draw = async (chart) => {
    const { data, specs } = content(chart);
    const name = chart.dataset.set;
    const values = rows(data[name]);
    const spec = { ...specs[chart.dataset.chart], datasets: { [name]: values } };
    const turn = (drawn.get(chart)?.turn ?? 0) + 1;
    drawn.get(chart)?.view?.finalize();
    drawn.set(chart, { turn, narrow: isNarrow(chart) });
    const { view } = await vegaEmbed(chart, spec, {
      mode: "vega-lite",
      ast: true,
      actions: false,
      renderer: values.length > MANY ? "canvas" : "svg",
      config: config(chart),
      tooltip: { theme: "fedslice" },
    });
    if (drawn.get(chart).turn === turn) drawn.get(chart).view = view;
    else view.finalize();
  };

  const again = () => [...drawn.keys()].forEach(draw);
  const charts = document.querySelectorAll(".chart");
  const near = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting && !drawn.has(target)) draw(target);
      }
    },
    { rootMargin: "400px" },
  );
  charts.forEach((chart) => near.observe(chart));

  for (const section of document.querySelectorAll("section[data-task]")) {
    const chart = section.querySelector("[data-role=curves]");
    const choices = ["metric", "axis"].map((role) => section.querySelector(`[data-role=${role}]`));
    for (const choice of choices.filter(Boolean)) {
      choice.addEventListener("change", () => {
        chart.dataset.chart = ["curves", ...choices.map((one) => one.value)].join("-");
        draw(chart);
      });
    }
  }

  dark.addEventListener("change", again);
  addEventListener("resize", () => {
    for (const [chart, { narrow }] of drawn) if (narrow !== isNarrow(chart)) draw(chart);
  });
  addEventListener("beforeprint", () => {
    printing = true;
    charts.forEach(draw);
  });
  addEventListener("afterprint", () => {
    printing = false;
    again();
  });
})();
