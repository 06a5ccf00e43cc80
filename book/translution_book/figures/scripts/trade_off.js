// with: pointer
// Draws the stored places of the chosen runs, and says which one the reader points at. A view is stored for every four
// choices that have runs, under their numbers: "task/trained/tested/across".
function figure({one, all, data}) {
  const choices = all("select"), slider = one("input"), said = one(".tl-said"), stage = one("svg");
  const [left, top, width, height] = data.box, bottom = top + height;

  const safe = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const write = (x, y, anchor, text) =>
    `<text x="${short(x)}" y="${short(y)}" text-anchor="${anchor}">${safe(text)}</text>`;
  const current = () => data.views[choices.map(choice => choice.value).join("/")];

  // Choices without runs are closed to the reader, each in view of those before it.
  const fit = () => {
    let views = Object.keys(data.views).map(key => key.split("/"));
    choices.forEach((choice, i) => {
      const open = [...new Set(views.map(view => view[i]))].sort((a, b) => a - b);
      for (const option of choice.options) option.disabled = !open.includes(option.value);
      if (!open.includes(choice.value)) choice.value = open[0];
      views = views.filter(view => view[i] === choice.value);
    });
  };

  const frame = view => {
    const rules = view.y.map(([y]) => `M${left} ${y}h${width}`).join("");
    const ticks = view.x.map(([x]) => `M${x} ${bottom}v4`).join("");
    return `<path d="${rules}" fill="none" stroke="${data.grey}" stroke-opacity=".4" stroke-width=".7"/>` +
      `<path d="M${left} ${bottom}h${width}${ticks}" fill="none" stroke="currentColor"/>` +
      view.x.map(([x, text]) => write(Number(x), bottom + 16, "middle", text)).join("") +
      view.y.map(([y, text]) => write(left - 5, Number(y) + 4, "end", text)).join("") +
      write(left + width / 2, bottom + 32, "middle", view.names[0]) + write(4, top - 12, "start", view.names[1]);
  };
  const dot = (run, [x, y]) => {
    const [colour, shape] = data.looks[data.runs[run][1]];
    return `<path d="${shape}" transform="translate(${x} ${y})" fill="${colour}" fill-opacity=".75" ` +
      'stroke="currentColor" stroke-width=".5"></path>';
  };

  const point = number => {
    const view = current(), [name, , results, cost] = data.runs[view.runs[number]];
    const [, , tested, across] = choices.map(choice => choice.value);
    const [paid, reached] = view.names, [cx, cy] = view.at[number];
    const text = `${name}: ${reached} ${results[tested]}, ${paid} ${data.costs[cost][across]}`;
    slider.value = number;
    said.value = text;
    slider.setAttribute("aria-valuetext", text);
    set(one(".tl-ring"), {cx, cy});
    stage.setAttribute("aria-label", `${data.alt} ${view.said} ${text}`);
  };
  const go = () => {
    fit();
    const view = current(), shown = new Set(view.runs.map(run => data.runs[run][1]));
    one(".tl-frame").innerHTML = frame(view);
    one(".tl-marks").innerHTML = view.runs.map((run, k) => dot(run, view.at[k])).join("");
    all(".tl-key").forEach((key, family) => { key.style.opacity = shown.has(family) ? 1 : 0.7; });
    slider.max = view.runs.length - 1;
    point(view.start);
  };
  const nearest = event => {
    const box = stage.getBoundingClientRect(), scale = data.size[0] / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    const away = current().at.map(place => Math.hypot(place[0] - x, place[1] - y));
    point(away.indexOf(Math.min(...away)));
  };

  choices.forEach(choice => choice.addEventListener("change", go));
  slider.addEventListener("input", () => point(Number(slider.value)));
  onPoint(stage, nearest);
  go();
}
