"use strict";
(() => {
  for (const choice of document.querySelectorAll("select[data-views]")) {
    const views = [...document.querySelectorAll(`#chart-${choice.dataset.views} > .view`)];
    const show = () => views.forEach((view, place) => (view.hidden = place !== Number(choice.value)));
    choice.addEventListener("change", show);
    show(); // a browser may restore a choice on reload
  }

  // A click on a part of a tree leaves that part, what is in it and what it is in; one on the whole shows all again.
  for (const tree of document.querySelectorAll(".icicle")) {
    tree.addEventListener("click", (event) => {
      const chosen = event.target.closest(".node");
      if (!chosen) return;
      for (const part of tree.querySelectorAll(".node, .own")) {
        part.hidden = !chosen.contains(part) && !part.contains(chosen);
      }
    });
  }

  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
  });
})();
