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

  const filter = (block, wanted) => {
    const rows = [...block.querySelectorAll("tbody tr")];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    }
    const left = rows.filter((row) => !row.hidden).length;
    block.querySelector(".count").textContent = wanted.length ? `${left} of ${rows.length} rows` : "";
  };

  for (const block of document.querySelectorAll(".table")) {
    const table = block.querySelector("table");
    for (const header of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => sort(table, header));
    }
    const label = block.querySelector(".filter");
    if (!label) continue;
    label.hidden = false;
    label.querySelector("input").addEventListener("input", (event) =>
      filter(block, event.target.value.toLowerCase().split(/\s+/).filter(Boolean)));
  }
})();
