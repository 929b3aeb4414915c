// A field for words and a list of kinds above a long table; without script the table stands there whole.

for (const bar of document.querySelectorAll(".filter")) {
  const words = bar.querySelector("input");
  const kind = bar.querySelector("select");
  const shown = bar.querySelector(".shown");
  const rows = [...document.getElementById(bar.dataset.rows).rows].map((row) => [row, row.textContent.toLowerCase()]);
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    let count = 0;
    for (const [row, text] of rows) {
      row.hidden = !((!kind.value || row.dataset.kind === kind.value) && wanted.every((word) => text.includes(word)));
      count += !row.hidden;
    }
    shown.textContent = `${count.toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")} rows`;
  };
  bar.hidden = false;
  words.addEventListener("input", apply);
  kind.addEventListener("change", apply);
  apply();
}
