"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const axisLook = (axis, line) => ({
    ...axis,
    title: { standoff: 10, ...axis.title },
    gridcolor: line,
    zerolinecolor: line,
  });

  // Colours come from the style sheet, so that both themes stand in one place.
  const dressed = (layout) => {
    const text = getComputedStyle(document.body).color;
    const line = getComputedStyle(document.querySelector("figure")).borderTopColor;
    const ground = getComputedStyle(document.body).backgroundColor;
    return {
      ...layout,
      ...(layout.xaxis && { xaxis: axisLook(layout.xaxis, line), yaxis: axisLook(layout.yaxis, line) }),
      font: { color: text, family: "system-ui, sans-serif", size: 12 },
      hoverlabel: { ...layout.hoverlabel, bgcolor: ground, bordercolor: line, font: { color: text } },
      legend: { orientation: "h", traceorder: "normal", x: 0, y: 1.02, yanchor: "bottom" },
      margin: { l: 60, r: layout.annotations.length ? 110 : 20, t: 20, b: 50 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
    };
  };

  const draw = (place) => {
    const key = place.dataset.chart;
    const choice = document.querySelector(`select[data-views="${key}"]`);
    const figure = specs[key][choice ? Number(choice.value) : 0];
    const config = { responsive: true, displaylogo: false, typesetMath: false };
    return Plotly.react(place, figure.data, dressed(figure.layout), config);
  };

  const places = [...document.querySelectorAll("[data-chart]")];
  const drawAll = () => places.forEach(draw);
  for (const choice of document.querySelectorAll("select[data-views]")) {
    const place = places.find((candidate) => candidate.dataset.chart === choice.dataset.views);
    choice.addEventListener("change", () => draw(place));
  }
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
    drawAll();
  });
  dark.addEventListener("change", drawAll);
  drawAll();
})();
