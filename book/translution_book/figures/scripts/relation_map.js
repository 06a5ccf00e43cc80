// with: pointer
// Lights up all pairs of the chosen relation, and draws its arcs. `data.ids` are the pairs' relations; −1 is masked.
function figure({one, all, data}) {
  const stage = one("svg"), slider = one("input"), arcs = one(".tl-p"), pairs = all(".tl-l rect");
  const show = chosen => {
    pairs.forEach((pair, k) => {
      pair.setAttribute("fill-opacity", data.ids[k] < 0 || data.ids[k] === chosen ? 1 : 0.16);
    });
    set(arcs, {d: data.paths[chosen], stroke: data.colours[chosen]});
    tell(slider, data.labels[chosen]);
    stage.setAttribute("aria-label", `${data.alt} ${data.labels[chosen]}`);
  };
  choose(slider, show, {stages: [stage], find: event => data.ids[under(pairs, event)]});
}
