// Shows the statement of the chosen node or arrow. Entry k of the list belongs to link k of the drawing; `data.lit[k]`
// are the links that light up with it.
function figure({one, all, data}) {
  const links = all("svg a"), items = all(".tl-item");
  let chosen = data.start;

  const show = whole => items.forEach((item, k) => { item.hidden = !whole && k !== chosen; });
  const go = number => {
    chosen = number;
    show(false);
    links.forEach((link, k) => {
      const lit = data.lit[chosen].includes(k), width = k === chosen ? 3.4 : lit ? 2.2 : 1.2;
      set(one(".tl-mark", link), {stroke: lit ? data.colour : "currentColor", "stroke-width": width});
      if (k === chosen) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
  };

  links.forEach((link, k) => {
    link.addEventListener("focus", () => go(k));
    link.addEventListener("click", event => { event.preventDefault(); go(k); });
  });
  addEventListener("beforeprint", () => show(true));
  addEventListener("afterprint", () => show(false));
  one(".tl-list").setAttribute("aria-live", "polite");
  go(chosen);
}
