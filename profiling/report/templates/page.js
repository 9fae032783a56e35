"use strict";
(() => {
  // Rows of a long table that are shown at first; a button shows the others.
  const FEW = 15;
  const words = new Intl.Collator("en", { numeric: true });

  // Rows without a number stay behind those that have one, whichever way the column is sorted.
  const compare = (a, b, column, numeric, sign) => {
    const [one, other] = [a.cells[column], b.cells[column]];
    if (!numeric) return sign * words.compare(one.textContent, other.textContent);
    if (one.dataset.sort === undefined || other.dataset.sort === undefined) {
      return (one.dataset.sort === undefined) - (other.dataset.sort === undefined);
    }
    return sign * (Number(one.dataset.sort) - Number(other.dataset.sort));
  };

  const sort = (table, header) => {
    const headers = [...table.tHead.rows[0].cells];
    const down = header.getAttribute("aria-sort") === "ascending";
    headers.forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const [column, numeric] = [headers.indexOf(header), header.classList.contains("number")];
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(a, b, column, numeric, down ? -1 : 1));
    table.tBodies[0].append(...rows);
  };

  // A row is shown if it holds the filter's words; of a long table without a filter, the first rows, or all.
  const show = (block) => {
    const rows = [...block.querySelectorAll("tbody tr")];
    const [input, all] = [block.querySelector("input"), block.querySelector(".all")];
    const wanted = (input?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const folded = !wanted.length && block.dataset.folded === "yes";
    rows.forEach((row, place) => {
      const text = wanted.length ? row.textContent.toLowerCase() : "";
      row.hidden = folded ? place >= FEW : !wanted.every((word) => text.includes(word));
    });
    const left = rows.filter((row) => !row.hidden).length;
    if (input) block.querySelector(".count").textContent = wanted.length ? `${left} of ${rows.length} rows` : "";
    all.hidden = wanted.length > 0 || block.dataset.folded === undefined;
    all.textContent = folded ? `show all ${rows.length} rows` : `show the first ${FEW} rows`;
  };

  for (const block of document.querySelectorAll(".table")) {
    const table = block.querySelector("table");
    const rows = table.tBodies[0].rows.length;
    for (const header of table.tHead.rows[0].cells) {
      if (rows < 2) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.title = "sort by this column";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        sort(table, header);
        show(block);
      });
    }
    if (rows > FEW + 5) block.dataset.folded = "yes";
    block.querySelector(".all").addEventListener("click", () => {
      block.dataset.folded = block.dataset.folded === "yes" ? "no" : "yes";
      show(block);
    });
    const label = block.querySelector(".filter");
    if (label) {
      label.hidden = false;
      label.querySelector("input").addEventListener("input", () => show(block));
    }
    show(block);
  }
})();
