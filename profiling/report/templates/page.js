"use strict";
(() => {
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

  // A row is shown if it holds the words of the filter.
  const filter = (block, words) => {
    const rows = [...block.querySelectorAll("tbody tr")];
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    }
    const left = rows.filter((row) => !row.hidden).length;
    block.querySelector(".count").textContent = wanted.length ? `${left} of ${rows.length} rows` : "";
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
      button.addEventListener("click", () => sort(table, header));
    }
    const label = block.querySelector(".filter");
    if (label) {
      label.hidden = false;
      label.querySelector("input").addEventListener("input", (event) => filter(block, event.target.value));
    }
  }
})();
