// with: pointer
// Shows on the right the stored matrix of the cell that is chosen on the left; null is a masked value.
function figure({one, all, data, masked}) {
  const stage = one("svg"), slider = one("input"), here = one(".tl-a"), there = one(".tl-b");
  const left = all(".tl-l rect"), right = all(".tl-r rect"), texts = all(".tl-v text");

  const paint = (value, high) => {
    if (value === null) return [masked, 1];
    if (data.ids) return [data.colours[value], 1];
    return [data.colours[value < 0 ? 1 : 0], Math.min(1, Math.abs(value) / high)];
  };
  // A colour that stands out from the cell's.
  const ink = (value, opacity) => {
    if (value === null || opacity <= 0.6) return "currentColor";
    return data.ids ? data.inks[value] : "#fff";
  };
  const word = value => {
    if (value === null) return "";
    return data.ids ? value : minus(value.toFixed(data.text));
  };

  const show = chosen => {
    data.rows[chosen].forEach((value, k) => {
      const [fill, opacity] = paint(value, data.high[chosen]);
      set(right[k], {fill, "fill-opacity": opacity});
      if (!texts[k]) return;
      texts[k].textContent = word(value);
      texts[k].setAttribute("fill", ink(value, opacity));
    });
    if (here) mark(here, left[chosen]);
    if (there) mark(there, right[chosen]);
    tell(slider, data.labels[chosen]);
    stage.setAttribute("aria-label", `${data.alt} ${data.labels[chosen]}`);
  };
  choose(slider, show, {stages: [stage], find: event => under(left, event), row: data.step});
}
