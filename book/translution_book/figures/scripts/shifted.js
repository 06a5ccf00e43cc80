// with: pointer, axes, levels
// Draws the stored maps of the shift that the slider, or a drag of the picture, chooses.
function figure({one, all, data}) {
  const slider = one("input"), stage = one("svg"), picture = one(".tl-picture"), pixel = one(".tl-mark");
  const cards = all(".tl-card"), dots = all(".tl-dot");

  const showCard = (card, k, shift) => {
    const {shown, left, size} = data.maps[k], change = data.changes[k][shift].toFixed(3);
    one(".tl-shown", card).innerHTML = cells(shown[shift], size[1], data.colours);
    one(".tl-left", card).innerHTML = cells(left[shift], size[1], data.colours);
    one(".tl-word", card).textContent = change;
    const label = `${data.names[k]}: map and what did not follow, change ${change}`;
    one("svg[role]", card).setAttribute("aria-label", label);
    const [cx, cy] = place(data.axes, data.xs[shift], data.changes[k][shift]);
    set(dots[k], {cx, cy});
    return `${data.names[k]} ${change}`;
  };
  const show = shift => {
    const at = data.places[shift];
    picture.innerHTML = cells(data.pictures[shift], data.size[1], data.colours);
    set(pixel, at ? {x: at[0], y: at[1], "stroke-opacity": 1} : {"stroke-opacity": 0});
    const words = cards.map((card, k) => showCard(card, k, shift));
    tell(slider, data.labels[shift]);
    stage.setAttribute("aria-label", `${data.alt} Shifted by ${data.labels[shift]}: ${words.join(", ")}`);
  };

  // The shift nearest to where the picture was dragged to.
  const drag = (event, start) => {
    const scale = stage.getBoundingClientRect().width / data.size[1];
    const wanted = data.xs[start.shift] + (event.clientX - start.x) / scale;
    const away = data.xs.map(x => Math.abs(x - wanted)), shift = away.indexOf(Math.min(...away));
    if (shift === Number(slider.value)) return;
    slider.value = shift;
    show(shift);
  };
  slider.addEventListener("input", () => show(Number(slider.value)));
  onDrag(stage, event => ({x: event.clientX, shift: Number(slider.value)}), drag);
  show(Number(slider.value));
}
