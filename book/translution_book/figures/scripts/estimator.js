// with: axes
// Estimates of exp(x·y) by trigonometric and by positive features, from a fixed sequence of random numbers, and their
// exact deviations: what `estimator.estimates` and `estimator.deviations` compute for the first view.

// Number k of the sequence in [0, 1): a 32-bit counter, mixed.
function uniform(k) {
  const counter = Math.imul(k + 1, 0x6D2B79F5);
  let mixed = Math.imul(counter ^ counter >>> 15, counter | 1);
  mixed ^= mixed + Math.imul(mixed ^ mixed >>> 7, mixed | 61);
  return ((mixed ^ mixed >>> 14) >>> 0) / 4294967296;
}

// Draw k of two independent Gaussian numbers.
function gaussians(k) {
  const radius = Math.sqrt(-2 * Math.log(1 - uniform(k))), turn = 2 * Math.PI * uniform(k + 1);
  return [radius * Math.cos(turn), radius * Math.sin(turn)];
}

// The squares of ‖x − y‖ and of ‖x + y‖.
function squares(x, y, degrees) {
  const inner = 2 * x * y * Math.cos(degrees * Math.PI / 180), own = x * x + y * y;
  return [Math.max(own - inner, 0), Math.max(own + inner, 0)];
}

function deviations(counts, [less, more]) {
  return [Math.sqrt(2 / counts[0]) * Math.sinh(less / 2), Math.sqrt(Math.expm1(more) / counts[1])];
}

function meanOf(values) {
  return values.reduce((a, b) => a + b, 0) / values.length;
}

// Three decimals for small numbers, none for large ones, and no negative zero.
function numberText(value) {
  const size = Math.abs(value), text = value.toFixed(size < 10 ? 3 : size < 100 ? 1 : 0);
  return Number(text) ? minus(text) : text.replace("-", "");
}

function figure({one, all, data}) {
  const [count, normX, normY, turn] = all("input"), equal = one("select");
  const values = all(".tl-value"), stage = one("svg");
  const [upper, lower, spread] = data.boxes, [low, high] = upper.x;
  let seed = 0;

  // Both estimates of a trial, divided by exp(x·y).
  const trial = (number, counts, [less, more]) => {
    const first = seed * data.draws + 2 * data.most * number, a = Math.sqrt(less), b = Math.sqrt(more);
    let trigonometric = 0, positive = 0;
    for (let draw = 0; draw < Math.max(...counts); draw++) {
      const [g, h] = gaussians(first + 2 * draw);
      if (draw < counts[0]) trigonometric += Math.cos(a * g);
      if (draw < counts[1]) positive += Math.exp(b * h);
    }
    return [Math.exp(less / 2) * trigonometric / counts[0], Math.exp(-more / 2) * positive / counts[1]];
  };

  // A histogram as high as its box.
  const bars = (box, ratios) => {
    const counts = Array(data.bins).fill(0), width = (high - low) / data.bins;
    for (const ratio of ratios) {
      const bin = Math.floor((ratio - low) / (high - low) * data.bins);
      if (bin >= 0 && bin < data.bins) counts[bin] += 1;
    }
    const top = Math.max(1, ...counts);
    return counts.map((n, bin) => {
      if (!n) return "";
      const [x, y] = place(box, low + bin * width, 0), [x2, y2] = place(box, low + (bin + 1) * width, n / top);
      return `M${x} ${y}V${y2}H${x2}V${y}z`;
    }).join("");
  };
  const band = (box, deviation) => {
    const [x, y] = place(box, 1 - deviation, 0), [x2, y2] = place(box, 1 + deviation, 1);
    return `M${x} ${y}V${y2}H${x2}V${y}z`;
  };
  const offAxis = ratios => {
    const left = ratios.filter(ratio => ratio < low).length, right = ratios.filter(ratio => ratio >= high).length;
    return left || right ? `off the axis: ${left} left, ${right} right` : "";
  };

  // Draws one kind of features, and gives its numbers in words.
  const showKind = (k, ratios, exact, curve, angle) => {
    const box = k ? lower : upper, deviation = Math.sqrt(meanOf(ratios.map(ratio => (ratio - 1) ** 2)));
    const negative = Math.round(100 * ratios.filter(ratio => ratio < 0).length / ratios.length);
    const row = [...[meanOf(ratios), deviation, exact].map(numberText), `${negative}%`];
    row.forEach((text, i) => { values[2 * i + k].textContent = text; });
    one(`.tl-band${k}`).setAttribute("d", band(box, exact));
    one(`.tl-bars${k}`).setAttribute("d", bars(box, ratios));
    one(`.tl-off${k}`).textContent = offAxis(ratios);
    const points = data.angles.map((degrees, i) => place(spread, degrees, curve[i]).join(" "));
    one(`.tl-curve${k}`).setAttribute("d", `M${points.join("L")}`);
    const [cx, cy] = place(spread, angle, deviation);
    set(one(`.tl-dot${k}`), {cx, cy});
    return `${data.names[k]} features: mean ${row[0]}, standard deviation ${row[1]}, exactly ${row[2]}`;
  };

  const go = () => {
    const m = data.counts[count.value], x = data.norms[normX.value], y = data.norms[normY.value];
    const angle = data.angles[turn.value], both = squares(x, y, angle);
    const counts = [m, equal.value === "draws" ? m : 2 * m];
    const trials = Array.from({length: data.trials}, (_, number) => trial(number, counts, both));
    const exact = deviations(counts, both);
    const curves = data.angles.map(degrees => deviations(counts, squares(x, y, degrees)));
    tell(count, String(m));
    tell(normX, x.toFixed(1));
    tell(normY, y.toFixed(1));
    tell(turn, `${angle}°`);
    const kind = k => showKind(k, trials.map(pair => pair[k]), exact[k], curves.map(pair => pair[k]), angle);
    const words = [0, 1].map(kind);
    const [left, bottom] = place(spread, angle, spread.y[0]);
    one(".tl-mark").setAttribute("d", `M${left} ${bottom}v${-spread.box[3]}`);
    const state = `m = ${m}, norms ${x.toFixed(1)} and ${y.toFixed(1)}, angle ${angle}°`;
    stage.setAttribute("aria-label", `${data.alt} ${state}: ${words.join("; ")}`);
  };

  for (const slider of [count, normX, normY, turn]) slider.addEventListener("input", go);
  equal.addEventListener("change", go);
  one(".tl-again").addEventListener("click", () => {
    seed = (seed + 1) % 4000;
    go();
  });
  go();
}
