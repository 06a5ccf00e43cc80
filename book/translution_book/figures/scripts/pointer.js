// Cells, drags and arrow keys: what a pointer, a finger or a keyboard chooses.

// The number of the cell under the pointer, −1 beside them all. A finger's events keep their first target; a place does
// not.
function under(cells, event) {
  return cells.indexOf(document.elementFromPoint(event.clientX, event.clientY));
}

// Lays a frame around a cell.
function mark(frame, cell) {
  for (const name of ["x", "y"]) frame.setAttribute(name, cell.getAttribute(name));
}

// A press or a move of the pointer, and a touch.
function onPoint(stage, act) {
  for (const kind of ["pointerdown", "pointermove"]) stage.addEventListener(kind, act);
}

// Arrow keys act by (down, right); a key that is not among `keys` stays with the control.
function onArrows(control, act, keys = ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]) {
  const ways = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  control.addEventListener("keydown", event => {
    if (!keys.includes(event.key)) return;
    event.preventDefault();
    act(...ways[event.key]);
  });
}

// Shows what a slider, the pointer over one of the stages (by `find`) and the arrow keys choose; `row` is how many
// numbers a key up or down passes over, and leaves these keys to the slider where it is not given.
function choose(slider, show, {stages, find, row}) {
  const current = () => Number(slider.value);
  const go = number => {
    if (!(number >= 0 && number <= slider.max) || number === current()) return;
    slider.value = number;
    show(number);
  };
  for (const stage of stages) onPoint(stage, event => go(find(event)));
  if (row) onArrows(slider, down => go(current() + down * row), ["ArrowUp", "ArrowDown"]);
  slider.addEventListener("input", () => show(current()));
  show(current());
}

// A drag that starts on the stage; what `grab` gives at its start comes with each of its moves.
function onDrag(stage, grab, drag) {
  let held = null;
  stage.addEventListener("pointerdown", event => {
    held = grab(event);
    event.preventDefault();
    if (event.isTrusted) stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", event => { if (held !== null) drag(event, held); });
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => { held = null; });
}
