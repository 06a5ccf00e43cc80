// with: pointer, attention
// Draw and move: the page computes each encoding's output before and after the move, and compares. State: `kinds`, the
// ink of every cell before the move; `move`, [down, right]; the query is its slider's value.
function figure({one, all, data, masked}) {
  const [height, width] = data.shape;
  const [down, right, at] = all("input");
  const [objects, grounds, depths] = ["object", "background", "layers"].map(name => one(`select[name=${name}]`));
  const said = one(".tl-said"), stage = one(".tl-draw"), ink = all(".tl-i rect"), ghosts = all(".tl-g rect");
  const cards = all(".tl-card").map((card, k) => ({
    name: data.names[k], heads: data.encodings[k], svg: one("svg", card), word: one(".tl-word", card),
    frame: one(".tl-a", card), weights: all(".tl-p rect", card), output: all(".tl-y rect", card),
    difference: all(".tl-d rect", card),
  }));
  let kinds = [...data.objects[data.object]], move = [...data.move];

  // The cell that lies `way` further, −1 beyond the grid.
  const beyond = (cell, way) => {
    const row = Math.floor(cell / width) + way[0], column = cell % width + way[1];
    return row >= 0 && column >= 0 && row < height && column < width ? row * width + column : -1;
  };
  const origin = cell => beyond(cell, [-move[0], -move[1]]);
  const moved = () => kinds.map((_, cell) => origin(cell) < 0 ? 0 : kinds[origin(cell)]);

  // The least and the largest move, along an axis, that keep the whole object on the grid.
  const room = axis => {
    const inked = [...kinds.keys()].filter(cell => kinds[cell]);
    const places = inked.map(cell => axis ? cell % width : Math.floor(cell / width));
    return places.length ? [-Math.min(...places), data.shape[axis] - 1 - Math.max(...places)] : [0, 0];
  };
  const allowed = way => way.map((steps, axis) => clip(steps, ...room(axis)));

  const run = (heads, picture) => {
    const ground = data.grounds[grounds ? Number(grounds.value) : data.ground];
    let tokens = picture.map(kind => kind ? data.inks[kind - 1] : ground), weights;
    const depth = data.depths[depths ? Number(depths.value) : 0];
    for (let layer = 0; layer < depth; layer++) [weights, tokens] = attend(heads, tokens, data.shape);
    return [weights, tokens];
  };
  // The output minus the moved output of the picture before the move; null where nothing came.
  const compare = (after, before) => after.map((values, cell) =>
    origin(cell) < 0 ? null : values.map((value, e) => value - before[origin(cell)][e]));
  const largest = values => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

  const paint = (cells, values, high) => cells.forEach((cell, k) => {
    const hidden = values[k] === null;
    set(cell, {
      fill: hidden ? masked : data.colours[values[k] < 0 ? 1 : 0],
      "fill-opacity": hidden ? 1 : high ? Math.min(1, Math.abs(values[k]) / high) : 0,
    });
  });
  const size = error => error < 5e-5 ? "below 0.0001" : error.toFixed(4);

  // Draws a card, and gives whether its encoding follows.
  const showCard = (card, now, query, place) => {
    const [weights, output] = run(card.heads, now), difference = compare(output, run(card.heads, kinds)[1]);
    const error = largest(difference.flatMap(values => values || [])), follows = error <= 1e-9 * largest(output.flat());
    const channel = output.map(values => values[data.channel]), high = largest(channel);
    const verdict = `${follows ? "✓ follows" : "✗ fails"}, largest difference ${size(error)}`;
    const word = move.some(Boolean) ? verdict : "move the object";
    paint(card.weights, weights[query], Math.max(...weights[query]));
    paint(card.output, channel, high);
    paint(card.difference, difference.map(values => values && values[data.channel]), high);
    mark(card.frame, card.weights[query]);
    card.word.textContent = word;
    card.svg.setAttribute("aria-label", `${card.name}: attention of query ${place}, output, and difference. ${word}`);
    return follows;
  };
  const summary = follows => [["follows", true], ["fails", false]].flatMap(([word, wanted]) => {
    const names = cards.filter((_, k) => follows[k] === wanted).map(card => card.name);
    return names.length ? [`${word}: ${names.join(", ")}`] : [];
  }).join("\n");

  const setSliders = () => [down, right].forEach((slider, axis) => {
    const zero = data.shape[axis] - 1, [least, most] = room(axis);
    Object.assign(slider, {min: least + zero, max: most + zero, value: move[axis] + zero});
    tell(slider, minus(move[axis]));
  });
  const go = () => {
    move = allowed(move);
    setSliders();
    const now = moved(), query = Number(at.value), place = `${Math.floor(query / width)}, ${query % width}`;
    const still = !move.some(Boolean);
    tell(at, place);
    now.forEach((kind, cell) => set(ink[cell], {fill: data.tints[kind], "fill-opacity": kind ? 1 : 0}));
    ghosts.forEach((ghost, cell) => ghost.setAttribute("stroke-opacity", !still && kinds[cell] ? 1 : 0));
    const follows = cards.map(card => showCard(card, now, query, place));
    mark(one(".tl-a", stage), ink[query]);
    said.textContent = still ? "not moved" : summary(follows);
    const way = move.map(minus).join(", ");
    stage.setAttribute("aria-label", `${data.alt} Moved by ${way} (rows, columns); query ${place}.`);
  };

  // Moves the object, and the query with it.
  const moveTo = way => {
    const next = allowed(way), query = beyond(Number(at.value), [next[0] - move[0], next[1] - move[1]]);
    move = next;
    if (query >= 0) at.value = query;
    go();
  };
  const askAt = query => {
    if (query < 0 || query === Number(at.value)) return;
    at.value = query;
    go();
  };
  // A cell that nothing was moved to takes its ink in the picture as it now lies.
  const draw = (cell, kind) => {
    if (origin(cell) < 0) [kinds, move] = [moved(), [0, 0]];
    kinds[origin(cell)] = kind;
    go();
  };
  const redrawn = cell => (moved()[cell] + 1) % data.tints.length;

  let pen = -1;
  stage.addEventListener("pointerdown", event => {
    const cell = under(ink, event);
    if (cell < 0) return;
    event.preventDefault();
    pen = redrawn(cell);
    draw(cell, pen);
  });
  stage.addEventListener("pointermove", event => {
    const cell = under(ink, event);
    if (pen >= 0 && event.buttons && cell >= 0 && moved()[cell] !== pen) draw(cell, pen);
  });
  document.addEventListener("pointerup", () => { pen = -1; });
  for (const {svg, weights, output, difference} of cards) {
    onPoint(svg, event => askAt(Math.max(...[weights, output, difference].map(cells => under(cells, event)))));
  }
  for (const slider of [down, right]) {
    slider.addEventListener("input", () => moveTo([down.value - height + 1, right.value - width + 1]));
    onArrows(slider, (rows, columns) => moveTo([move[0] + rows, move[1] + columns]));
  }
  at.addEventListener("input", go);
  onArrows(at, rows => askAt(beyond(Number(at.value), [rows, 0])), ["ArrowUp", "ArrowDown"]);
  one(".tl-pen").addEventListener("click", () => draw(Number(at.value), redrawn(Number(at.value))));
  one(".tl-clear").addEventListener("click", () => {
    [kinds, move] = [kinds.map(() => 0), [0, 0]];
    go();
  });
  objects.addEventListener("change", () => {
    kinds = [...data.objects[objects.value]];
    go();
  });
  for (const choice of [grounds, depths]) if (choice) choice.addEventListener("change", go);
  go();
}
