// with: pointer
// Moves the picture and says what it covers and needs, as `placement.state` does for the first view. Along an axis:
// the patches that the ink touches, and the offsets from their queries to all keys.
function figure({one, all, data}) {
  const corners = all("input"), stage = one("svg"), patches = all(".tl-hit rect"), offsets = all(".tl-met rect");
  const dots = all(".tl-dots circle"), bars = all(".tl-bar"), rates = all(".tl-rate");
  const span = (first, end) => Array.from({length: end - first}, (_, k) => first + k);
  const line = span(1 - data.grid, data.grid), keys = span(0, data.grid), known = new Set(data.known);

  const touchedBy = (corner, axis) => {
    const [first, last] = data.box[axis].map(end => Math.floor((corner + end) / data.patch));
    return span(first, last + 1);
  };
  const offsetsOf = (queries, others) => new Set(queries.flatMap(query => others.map(key => query - key)));
  const knownShare = queries => {
    const pairs = queries.flatMap(query => keys.map(key => known.has(query - key)));
    return pairs.filter(Boolean).length / pairs.length;
  };
  const phase = corner => {
    const away = (corner - Math.floor(data.room / 2)) % data.patch;
    return (away + data.patch) % data.patch;
  };

  const drawPatches = touched => patches.forEach((patch, k) => {
    const hit = touched[0].includes(Math.floor(k / data.grid)) && touched[1].includes(k % data.grid);
    patch.setAttribute("fill-opacity", hit ? 0.25 : 0);
  });
  const drawOffsets = touched => {
    const met = touched.map(queries => offsetsOf(queries, keys));
    const inked = touched.map(queries => offsetsOf(queries, queries));
    offsets.forEach((cell, k) => {
      const offset = [line[Math.floor(k / line.length)], line[k % line.length]];
      const now = offset.every((step, axis) => met[axis].has(step)), trained = offset.every(step => known.has(step));
      const opacity = now ? (trained ? 0.75 : 0.95) : trained ? 0.14 : 0;
      set(cell, {fill: data.fills[now && !trained ? "new" : "trained"], "fill-opacity": opacity});
      dots[k].setAttribute("fill-opacity", offset.every((step, axis) => inked[axis].has(step)) ? 1 : 0);
    });
  };
  const drawRates = at => {
    const [row, column] = at.map(corner => Math.floor(corner * data.cells / (data.room + 1)));
    Object.values(data.rates).forEach((values, k) => {
      const rate = values[row * data.cells + column];
      bars[k].style.width = `${100 * (rate || 0)}%`;
      rates[k].textContent = rate === null ? "–" : `${Math.round(100 * rate)} %`;
    });
  };
  const sentence = (at, touched) => {
    const edge = Math.min(...at, ...at.map(corner => data.room - corner));
    const fresh = Math.round(100 * (1 - knownShare(touched[0]) * knownShare(touched[1])));
    return `Corner (${at.join(", ")}), phase (${at.map(phase).join(", ")}), ${edge} pixels from the edge; the ink ` +
      `touches ${touched[0].length} by ${touched[1].length} patches; ${fresh} % of the pairs of its queries have an ` +
      "offset that no centred picture meets.";
  };

  const go = () => {
    const at = corners.map(corner => Number(corner.value)), touched = at.map(touchedBy), said = sentence(at, touched);
    one(".tl-picture").setAttribute("transform", `translate(${at[1]} ${at[0]})`);
    drawPatches(touched);
    drawOffsets(touched);
    drawRates(at);
    one(".tl-said").textContent = said;
    stage.setAttribute("aria-label", `${data.alt} ${said}`);
    corners.forEach((corner, axis) => tell(corner, String(at[axis])));
  };
  const drag = (event, start) => {
    const scale = data.canvas / stage.getBoundingClientRect().width;
    corners[0].value = Math.round(start.row + (event.clientY - start.y) * scale);
    corners[1].value = Math.round(start.column + (event.clientX - start.x) * scale);
    go();
  };

  corners.forEach(corner => corner.addEventListener("input", go));
  onDrag(stage, event => ({
    x: event.clientX, y: event.clientY, row: Number(corners[0].value), column: Number(corners[1].value),
  }), drag);
  go();
}
