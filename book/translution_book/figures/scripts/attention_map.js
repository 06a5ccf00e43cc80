// with: pointer
// A query's weights, and the relation through which it reads each key: id −1 is a masked pair.
function figure({one, all, data, masked}) {
  const stages = all("svg"), slider = one("input"), names = all(".tl-v text"), frames = all(".tl-a");
  const panels = [".tl-l", ".tl-r", ".tl-m"].map(panel => all(`${panel} rect`));
  const [queries, weights, relations] = panels;
  const show = query => {
    data.ids[query].forEach((relation, key) => {
      const hidden = relation < 0;
      weights[key].setAttribute("fill-opacity", data.rows[query][key] / data.high[query]);
      relations[key].setAttribute("fill", hidden ? masked : data.colours[relation]);
      names[key].textContent = hidden ? "" : data.names[relation];
      names[key].setAttribute("fill", hidden ? "currentColor" : data.inks[relation]);
    });
    frames.forEach((frame, panel) => mark(frame, panels[panel][query]));
    tell(slider, data.labels[query]);
    stages[0].setAttribute("aria-label", `${data.alt} ${data.labels[query]}`);
  };
  choose(slider, show, {stages, find: event => under(queries, event), row: data.step});
}
