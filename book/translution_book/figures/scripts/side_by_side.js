// with: pointer
// Several tables of parameters under one pointer: the entry of the chosen offset appears below each of its maps.
function figure({one, all, data}) {
  const slider = one("input");
  const cards = all(".tl-card").map((card, k) => ({
    map: data.maps[k], stage: one("svg", card), frame: one(".tl-a", card), text: one(".tl-t", card),
    cells: all(".tl-l rect", card), entry: all(".tl-e rect", card), hands: all(".tl-h line", card),
  }));

  const dot = (a, b) => a.reduce((sum, value, k) => sum + value * b[k], 0);
  const cosine = (a, b) => dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);
  const paint = (cells, values, high) => cells.forEach((cell, k) => set(cell, {
    fill: data.colours[values[k] < 0 ? 1 : 0],
    "fill-opacity": high ? Math.min(1, Math.abs(values[k]) / high) : 0,
  }));
  const point = (hand, angle) => set(hand, {
    x2: Number(hand.getAttribute("x1")) + data.radius * Math.cos(angle),
    y2: Number(hand.getAttribute("y1")) - data.radius * Math.sin(angle),
  });

  const showCard = ({map, stage, frame, text, cells, entry, hands}, offset) => {
    const chosen = map.entries[offset], cosines = map.show === "cosine";
    if (cosines) paint(cells, map.entries.map(other => cosine(chosen, other)), 1);
    mark(frame, cells[offset]);
    paint(entry, chosen, map.most);
    hands.forEach((hand, k) => point(hand, chosen[k]));
    text.textContent = cosines ? "cosines with this entry" : map.word + minus(map.values[offset].toFixed(3));
    stage.setAttribute("aria-label", `${map.name} at ${data.labels[offset]}: ${text.textContent}`);
  };
  const show = offset => {
    tell(slider, data.labels[offset]);
    cards.forEach(card => showCard(card, offset));
  };
  const find = event => Math.max(...cards.map(card => under(card.cells, event)));
  choose(slider, show, {stages: cards.map(card => card.stage), find, row: data.step});
}
