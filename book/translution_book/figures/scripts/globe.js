// with: pointer, sphere
// Parallel transport on a globe that the reader turns. State: the loops' corners, the number of the loop, of the corner
// that the sliders move, and the place that faces the reader. A seen point is [right, up, towards the reader].
function figure({one, all, data}) {
  const [step, colatitude, longitude, turn, tilt] = all("input");
  const [loops, corners] = ["loop", "corner"].map(name => one(`select[name=${name}]`));
  const stage = one(".tl-globe"), values = all(".tl-value"), grid = graticule();
  const state = data.loops.map(({places}) => places.map(place => [...place]));
  let chosen = 0, view = [...data.view], corner = Math.min(data.corner, state[0].length - 1), last = 0, walk = 0;
  const loop = () => state[chosen];

  const pixel = value => short(data.size / 2 + data.radius * value);
  const at = ([right, up]) => `${pixel(right)} ${pixel(-up)}`;
  const put = (name, d) => one(`.tl-${name}`).setAttribute("d", d);
  const degrees = angle => minus((angle / RADIAN).toFixed(1).replace(/^-0\.0$/, "0.0")) + "°";
  const whole = angle => minus(Math.round(angle)) + "°";

  // A seen point moved to the edge of the globe.
  const atLimb = ([right, up]) => times(1 / Math.max(Math.hypot(right, up), 1e-9), [right, up, 0]);
  const side = depth => depth < 0 ? 1 : 0;
  // The pieces of a step, each with its side: 0 in front, 1 behind.
  const pieces = (a, b) => {
    if (a[2] < 0 === b[2] < 0) return [[a, b, side(a[2] + b[2])]];
    const crossing = atLimb(mix(1, a, a[2] / (a[2] - b[2]), mix(1, b, -1, a)));
    return [[a, crossing, side(a[2])], [crossing, b, side(b[2])]];
  };
  // Path data of a curve's front and back.
  const split = curve => {
    const paths = ["", ""];
    let was = -1;
    curve.slice(1).forEach((b, k) => {
      for (const [start, end, now] of pieces(curve[k], b)) {
        paths[now] += `${now === was ? "" : `M${at(start)}L`}${at(end)} `;
        was = now;
      }
    });
    return paths.map(path => path.trim());
  };
  const arrow = (p, v) => {
    const along = times(data.arrow, v), across = times(data.arrow, cross(p, v)), tip = mix(1, p, 1, along);
    const [first, second] = [0.15, -0.15].map(wide => mix(1, mix(1, p, 0.74, along), wide, across));
    return `M${at(p)}L${at(tip)}M${at(first)}L${at(tip)}L${at(second)}`;
  };

  const drawLoop = (seen, points) => {
    const lines = grid.map(curve => split(curve.map(seen))), edge = split(points);
    for (const k of [0, 1]) {
      put(`grid${k}`, lines.map(paths => paths[k]).join(""));
      put(`loop${k}`, edge[k]);
    }
    const facets = facetsOf(loop(), data.mesh).map(facet => facet.map(seen)).filter(facet => facet.some(p => p[2] > 0));
    put("fill", facets.map(facet => `M${facet.map(p => at(p[2] < 0 ? atLimb(p) : p)).join("L")}z`).join(""));
  };
  const drawVectors = (points, vectors, now) => {
    const ghosts = ["", ""];
    for (let k = data.every; k < now; k += data.every) ghosts[side(points[k][2])] += arrow(points[k], vectors[k]);
    ghosts.forEach((d, k) => put(`ghosts${k}`, d));
    for (const [name, k] of [["start", 0], ["now", now]]) {
      put(name, arrow(points[k], vectors[k]));
      one(`.tl-${name}`).setAttribute("stroke-opacity", points[k][2] < 0 ? 0.4 : 1);
    }
  };
  // The arc from the first to the last vector, once the loop is complete.
  const drawTurned = ([p], [v], angle) => {
    const least = Math.atan2(Math.sin(angle), Math.cos(angle)), across = cross(p, v);
    const stop = k => mix(1, p, data.arc, mix(Math.cos(least * k / 24), v, Math.sin(least * k / 24), across));
    put("turned", `M${range(0, 24, 1).map(k => at(stop(k))).join("L")}`);
  };
  // Handles with their names, which stand away from the loop's middle.
  const drawCorners = seen => {
    const points = loop().map(place => seen(unit(place)));
    const middle = [0, 1].map(axis => points.reduce((sum, p) => sum + p[axis], 0) / points.length);
    all(".tl-corner").forEach((handle, k) => {
      const p = points[k], away = [p[0] - middle[0], p[1] - middle[1] + (points.length > 1 ? 1e-6 : -1)];
      const [x, y] = times(15 / Math.hypot(...away), away), behind = p[2] < 0;
      set(handle, {transform: `translate(${at(p)})`, opacity: behind ? 0.4 : 1});
      handle.style.pointerEvents = behind ? "none" : "";
      set(one("text", handle), {x: short(x), y: short(-y)});
    });
  };

  const write = (area, angle) => {
    const inner = loop().length < 2 ? [] : innerAngles(loop(), area), sum = inner.reduce((a, b) => a + b, 0);
    const excess = (area < 0 ? -1 : 1) * (sum - Math.PI * (inner.length - 2));
    const texts = [degrees(angle), `${minus(area.toFixed(4))} = ${degrees(area)}`,
      inner.map(degrees).join(", ") || "no corners", inner.length ? degrees(excess) : "–"];
    values.forEach((value, k) => { value.textContent = texts[k]; });
    const {name} = data.loops[chosen], title = name[0].toUpperCase() + name.slice(1);
    stage.setAttribute("aria-label", `${data.alt} ${title}: turned by ${texts[0]}, area ${texts[1]}.`);
  };
  const setSlider = (slider, value, text) => {
    slider.value = value;
    tell(slider, text);
  };
  const setSliders = now => {
    const [theta, phi] = loop()[corner];
    step.max = last;
    setSlider(step, now, `${now}/${last}`);
    setSlider(colatitude, Math.round(theta), whole(theta));
    setSlider(longitude, Math.round(phi) + 180, whole(phi));
    setSlider(turn, Math.round(view[1]) + 180, whole(view[1]));
    setSlider(tilt, 180 - Math.round(view[0]), whole(90 - view[0]));
  };

  const go = () => {
    const [south, east, up] = frameAt(view), seen = p => [dot(p, east), -dot(p, south), dot(p, up)];
    const stations = stationsOf(loop(), data), vectors = carriedAround(loop(), stations, data);
    const points = stations.map(seen), arrows = vectors.map(seen), area = areaOf(loop());
    const angle = turnedBy(loop(), vectors, area);
    last = stations.length - 1;
    const now = Math.min(Number(step.value), last);
    setSliders(now);
    drawLoop(seen, points);
    drawVectors(points, arrows, now);
    if (now < last) put("turned", "");
    else drawTurned(points, arrows, angle);
    drawCorners(seen);
    write(area, angle);
  };

  // Corners keep apart from each other and from each other's antipodes, a circle from the poles.
  const allowed = () => {
    if (loop().length < 2) return loop()[0][0] >= 5 && loop()[0][0] <= 175;
    const points = loop().map(unit), most = Math.cos(data.apart * RADIAN);
    return points.every((a, k) => points.slice(k + 1).every(b => Math.abs(dot(a, b)) < most));
  };
  // Moves a corner towards a place, as far as is allowed.
  const move = (number, place) => {
    const from = loop()[number], to = loop().length < 2 ? [clip(place[0], 5, 175), place[1]] : place;
    for (let part = 90; part > 0; part--) {
      loop()[number] = from.map((angle, axis) => Math.round(angle + (to[axis] - angle) * part / 90));
      if (allowed()) return go();
    }
    loop()[number] = from;
    return go();
  };
  const showCorners = () => {
    corners.parentNode.style.display = loop().length > 1 ? "" : "none";
  };
  const chooseLoop = number => {
    chosen = number;
    const {names} = data.loops[chosen], [plain, ...others] = all(".tl-corner");
    corner = Math.min(data.corner, names.length - 1);
    others.forEach(handle => handle.remove());
    names.forEach((name, k) => {
      const handle = k ? plain.cloneNode(true) : plain;
      one("text", handle).textContent = name;
      if (k) plain.parentNode.append(handle);
    });
    corners.replaceChildren(...names.map((name, k) => new Option(name, k, k === corner, k === corner)));
    showCorners();
    step.max = step.value = stationsOf(loop(), data).length - 1;
    go();
  };

  // Where the pointer is, in the globe's radii from its middle.
  const point = event => {
    const box = stage.getBoundingClientRect(), scale = data.size / box.width / data.radius;
    return [(event.clientX - box.left - box.width / 2) * scale, -(event.clientY - box.top - box.height / 2) * scale];
  };
  const grab = event => {
    const handle = event.target.closest(".tl-corner"), number = handle ? all(".tl-corner").indexOf(handle) : -1;
    if (number >= 0) corners.value = corner = number;
    return {number, at: point(event)};
  };
  const turnBy = (right, up) => {
    const phi = view[1] - right / RADIAN;
    view = [clip(view[0] + up / RADIAN, 0, 180), phi > 180 ? phi - 360 : phi < -180 ? phi + 360 : phi];
    go();
  };
  const drag = (event, held) => {
    const [x, y] = point(event), [x0, y0] = held.at;
    held.at = [x, y];
    if (held.number < 0) return turnBy(x - x0, y - y0);
    const [south, east, up] = frameAt(view), r = Math.hypot(x, y), depth = Math.sqrt(Math.max(0, 1 - r * r));
    const [right, high] = r > 1 ? [x / r, y / r] : [x, y];
    return move(held.number, placeOf(mix(1, mix(right, east, -high, south), depth, up)));
  };

  // Carries the vector around the loop; readers who want no motion carry it a quarter further with every press.
  const play = () => {
    const run = ++walk, still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const quarter = Math.ceil(last / 4);
    let now = still && Number(step.value) < last ? Math.min(last, Number(step.value) + quarter) : 0;
    const tick = () => {
      if (run !== walk) return;
      step.value = now;
      go();
      now += 1;
      if (!still && now <= last) setTimeout(tick, 45);
    };
    tick();
  };

  onDrag(stage, grab, drag);
  // A finger on a corner does not scroll the page.
  stage.addEventListener("touchstart", event => {
    if (event.target.closest(".tl-corner")) event.preventDefault();
  }, {passive: false});
  step.addEventListener("input", () => { walk++; go(); });
  for (const slider of [colatitude, longitude]) {
    slider.addEventListener("input", () => move(corner, [Number(colatitude.value), longitude.value - 180]));
  }
  for (const slider of [turn, tilt]) {
    slider.addEventListener("input", () => {
      view = [180 - tilt.value, turn.value - 180];
      go();
    });
  }
  if (loops) loops.addEventListener("change", () => { walk++; chooseLoop(Number(loops.value)); });
  corners.addEventListener("change", () => {
    corner = Number(corners.value);
    go();
  });
  one(".tl-play").addEventListener("click", play);
  showCorners();
  go();
}
