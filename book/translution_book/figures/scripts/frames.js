// Turns the pages of stored drawings; each is a list of pieces, for what drawings share is stored once.
function figure({one, data}) {
  const stage = one("svg"), slider = one("input");
  const show = () => {
    const number = Number(slider.value);
    stage.innerHTML = data.frames[number].map(piece => data.parts[piece]).join("");
    stage.setAttribute("aria-label", data.alts[number]);
    tell(slider, data.values[number]);
  };
  slider.addEventListener("input", show);
  show();
}
