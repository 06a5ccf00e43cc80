// Hides and shows rows and redraws the bars that count them. `data.keys[i][k]` is the value of filter i in row k;
// `data.by` are the filters of the bars and of their parts.
function figure({one, all, data}) {
  const rows = all("tbody tr"), choices = all("select"), words = one("input"), said = one("output");
  const svg = one("svg"), box = one(".tl-scroll"), bars = all("svg > rect"), sums = all(".tl-n");
  const texts = rows.map(row => row.textContent.toLowerCase());
  const [group, part] = data.by;

  const chosen = (k, wanted) => wanted.every(word => texts[k].includes(word)) &&
    choices.every((choice, i) => choice.value === "" || data.keys[i][k] === Number(choice.value));

  const drawBar = (counts, g) => {
    const sum = counts.reduce((a, b) => a + b, 0);
    let x = data.left;
    sums[g].textContent = sum;
    counts.forEach((count, p) => {
      const width = sum ? data.width * count / sum : 0;
      set(bars[g * counts.length + p], {x: x.toFixed(1), width: width.toFixed(1)});
      x += width;
    });
  };
  const sentence = table => {
    const line = counts => counts.map((count, p) => count && `${count} ${data.parts[p]}`).filter(Boolean).join(", ");
    const lines = table.map((counts, g) => line(counts) && `${data.groups[g]}: ${line(counts)}`);
    return `${data.alt} ${lines.filter(Boolean).join("; ")}.`;
  };

  const go = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const table = data.groups.map(() => data.parts.map(() => 0));
    rows.forEach((row, k) => {
      row.hidden = !chosen(k, wanted);
      if (!row.hidden) table[data.keys[group][k]][data.keys[part][k]] += 1;
    });
    said.value = `${rows.filter(row => !row.hidden).length} of ${data.total} rows`;
    table.forEach(drawBar);
    svg.setAttribute("aria-label", sentence(table));
    box.scrollTop = 0;
  };
  const clear = () => {
    choices.forEach(choice => { choice.value = ""; });
    words.value = "";
    go();
  };
  // Paper has no scroll box.
  const limit = on => Object.assign(box.style, {maxHeight: on ? "75vh" : "", overflowY: on ? "auto" : ""});
  // The row whose id stands in the address is shown, whatever was chosen.
  const seek = () => {
    const wanted = decodeURIComponent(location.hash.slice(1)), row = rows.find(each => each.id === wanted);
    if (!row) return;
    if (row.hidden) clear();
    row.scrollIntoView({block: "center"});
  };

  choices.forEach(choice => choice.addEventListener("change", go));
  words.addEventListener("input", go);
  one("button").addEventListener("click", () => { clear(); words.focus(); });
  addEventListener("hashchange", seek);
  addEventListener("beforeprint", () => limit(false));
  addEventListener("afterprint", () => limit(true));
  limit(true);
  go();
  seek();
}
