// What the figures share. `script.py` puts this file, the parts that a figure's own file names in its first line, that
// file and the call of `start` into one function: nothing leaks into the page, and no figure depends on another one.

// Brings the figures with this id to life, each of them once: a page may hold the same figure twice. A figure gets
// selectors within it, its data, and the paint of masked cells.
function start(id, figure) {
  for (const root of document.querySelectorAll(`#${id}:not([data-ready])`)) {
    root.dataset.ready = 1;
    const one = (selector, within = root) => within.querySelector(selector);
    const all = (selector, within = root) => [...within.querySelectorAll(selector)];
    figure({one, all, data: JSON.parse(one(".tl-data").textContent), masked: `url(#${id}m)`});
    all(".tl-control").forEach(control => { control.style.display = "flex"; });
  }
}

function set(element, attributes) {
  for (const name in attributes) element.setAttribute(name, attributes[name]);
}

// A slider's value in words: beside it, and for a screen reader.
function tell(slider, text) {
  slider.closest(".tl-control").querySelector("output").value = text;
  slider.setAttribute("aria-valuetext", text);
}

function minus(text) {
  return String(text).replace("-", "−");
}

// A coordinate as short as it goes, without a negative zero.
function short(value) {
  return String(Number(value.toFixed(1)) + 0);
}

function clip(value, low, high) {
  return Math.min(high, Math.max(low, value));
}
