"use strict";
// Each figure holds its specification and its data as JSON. Data are columns; a figure with a choice holds one set for each option;
// a column of words that come again and again holds them once, and each row's place among them.
const NARROW = 640;

// Colours of the page's own style sheet, so that charts follow light, dark and paper without being drawn anew.
function theme(width) {
  const ink = "currentColor";
  const below = width < NARROW ? { orient: "bottom", columns: 2 } : {};
  return {
    background: null,
    font: "system-ui, sans-serif",
    axis: { labelSeparation: 4, labelColor: ink, titleColor: ink, gridColor: "var(--grid)", domainColor: ink, tickColor: ink },
    legend: { labelColor: ink, titleColor: ink, ...below },
    header: { labelColor: ink, titleColor: ink },
    title: { color: ink },
    text: { color: ink },
    mark: { color: "var(--mark)" },
    view: { stroke: null },
  };
}

function unpacked(column) {
  return Array.isArray(column) ? column : column.at.map((place) => column.words[place]);
}

function rows(packed) {
  const columns = Object.fromEntries(Object.entries(packed).map(([name, column]) => [name, unpacked(column)]));
  const names = Object.keys(columns);
  const count = names.length ? columns[names[0]].length : 0;
  return Array.from({ length: count }, (_, place) => Object.fromEntries(names.map((name) => [name, columns[name][place]])));
}

function part(figure, kind) {
  return JSON.parse(figure.querySelector(`script.${kind}`).textContent);
}

async function draw(figure) {
  const spec = part(figure, "spec");
  const chosen = figure.querySelector("select");
  const sets = part(figure, "data");
  const columns = sets[chosen ? Number(chosen.value) : 0];
  spec.datasets = { rows: rows(columns.columns) };
  Object.assign(spec, columns.sizes || {});
  const chart = figure.querySelector(".chart");
  spec.config = theme(chart.clientWidth);
  for (const layer of [spec, ...(spec.layer || [])]) {
    const axis = layer.encoding?.y?.axis;
    if (axis) axis.labelLimit = Math.min(axis.labelLimit, 0.35 * chart.clientWidth); // names leave room for what they name
  }
  try {
    await vegaEmbed(chart, spec, { actions: false, renderer: "svg" });
    figure.dataset.drawn = String(spec.datasets.rows.length);
  } catch (error) {
    chart.textContent = "This chart could not be drawn; its numbers are in the table below.";
    console.error(error);
  }
}

const figures = [...document.querySelectorAll("figure[data-chart]")];
for (const figure of figures) {
  const select = figure.querySelector("select");
  if (select) select.addEventListener("change", () => draw(figure));
}
// A figure is drawn when it comes near the screen, so that a long page answers at once; printing needs all of them.
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }
}, { rootMargin: "600px" });
figures.forEach((figure) => watcher.observe(figure));
window.drawAll = () => Promise.all(figures.filter((figure) => !figure.dataset.drawn).map(draw));
window.addEventListener("beforeprint", window.drawAll);
