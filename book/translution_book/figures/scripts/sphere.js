// The unit sphere. Points and vectors are [x, y, z]; a place is [θ, φ], colatitude and longitude in degrees. A loop is
// a list of places: a polygon's corners, or one place, which stands for its circle of latitude, walked eastwards.
const RADIAN = Math.PI / 180;

function dot(a, b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

function cross(a, b) {
  return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
}

// The vector s a + t b.
function mix(s, a, t, b) {
  return a.map((value, k) => s * value + t * b[k]);
}

function times(s, a) {
  return a.map(value => s * value);
}

function sized(a) {
  return times(1 / Math.max(Math.hypot(...a), 1e-12), a);
}

// South, east and up at a place.
function frameAt([theta, phi]) {
  const s = Math.sin(theta * RADIAN), c = Math.cos(theta * RADIAN);
  const t = Math.sin(phi * RADIAN), u = Math.cos(phi * RADIAN);
  return [[c * u, c * t, -s], [-t, u, 0], [s * u, s * t, c]];
}

function unit(place) {
  return frameAt(place)[2];
}

function placeOf([x, y, z]) {
  return [Math.acos(clip(z, -1, 1)) / RADIAN, Math.atan2(y, x) / RADIAN];
}

// The angle from v to w around `up`, counterclockwise.
function angleBetween(up, v, w) {
  return Math.atan2(dot(up, cross(v, w)), dot(v, w));
}

// The vector v, tangent at a, carried to b along the shorter great circle.
function carry(v, a, b) {
  return mix(1, v, -dot(b, v) / (1 + dot(a, b)), mix(1, a, 1, b));
}

// Points of the shorter great arc from a towards b, without b.
function arc(a, b, count) {
  const way = mix(1, b, -dot(a, b), a), step = Math.atan2(Math.hypot(...way), dot(a, b)) / count;
  return Array.from({length: count}, (_, k) => mix(Math.cos(step * k), a, Math.sin(step * k), sized(way)));
}

// `count` places of a circle of latitude from one longitude on, `step` degrees apart.
function circle([theta, phi], count, step) {
  return Array.from({length: count}, (_, k) => unit([theta, phi + step * k]));
}

// The points that a walk around the loop stops at; first and last are the same.
function stationsOf(loop, parts) {
  if (loop.length < 2) return circle(loop[0], parts.circle + 1, 360 / parts.circle);
  const corners = loop.map(unit);
  return [...corners.flatMap((a, k) => arc(a, corners[(k + 1) % corners.length], parts.edge)), corners[0]];
}

// A vector at every station, carried without turning. The first stands `bearing` degrees counterclockwise of the first
// edge, or on a circle of the south. A circle is no great circle: short steps approach it.
function carriedAround(loop, stations, parts) {
  const [south, , up] = frameAt(loop[0]);
  const ahead = sized(loop.length < 2 ? south : mix(1, stations[1], -dot(stations[1], up), up));
  const turn = parts.bearing * RADIAN, step = 360 / parts.circle / parts.fine;
  const vectors = [mix(Math.cos(turn), ahead, Math.sin(turn), cross(up, ahead))];
  for (let k = 0; k + 1 < stations.length; k++) {
    const start = [loop[0][0], loop[0][1] + k * parts.fine * step];
    const stops = loop.length < 2 ? circle(start, parts.fine + 1, step) : stations.slice(k, k + 2);
    vectors.push(stops.slice(1).reduce((v, stop, n) => carry(v, stops[n], stop), vectors[k]));
  }
  return vectors;
}

// The area to the left of the loop, in (−2π, 2π].
function areaOf(loop) {
  if (loop.length < 2) return 2 * Math.PI * (1 - Math.cos(loop[0][0] * RADIAN));
  const [a, ...others] = loop.map(unit);
  let area = 0;
  for (let k = 0; k + 1 < others.length; k++) {
    const b = others[k], c = others[k + 1];
    area += 2 * Math.atan2(dot(a, cross(b, c)), 1 + dot(a, b) + dot(b, c) + dot(c, a));
  }
  return area - 4 * Math.PI * Math.ceil((area - 2 * Math.PI) / (4 * Math.PI));
}

// The angle from the first to the last vector, of its values the one nearest to the area.
function turnedBy(loop, vectors, area) {
  const angle = angleBetween(unit(loop[0]), vectors[0], vectors[vectors.length - 1]);
  return angle + 2 * Math.PI * Math.round((area - angle) / (2 * Math.PI));
}

// A polygon's angles at its corners, on the side whose area is counted.
function innerAngles(loop, area) {
  const corners = loop.map(unit), side = area < 0 ? -1 : 1;
  return corners.map((b, k) => {
    const a = corners[(k || corners.length) - 1], c = corners[(k + 1) % corners.length];
    return Math.PI - side * angleBetween(b, mix(dot(a, b), b, -1, a), mix(1, c, -dot(c, b), b));
  });
}

// Small polygons that fill the loop.
function facetsOf(loop, mesh) {
  if (loop.length < 2) return capFacets(loop[0][0] / mesh, mesh);
  const [a, ...others] = loop.map(unit);
  return others.slice(1).flatMap((c, k) => triangleFacets(a, others[k], c, mesh));
}

function capFacets(step, mesh) {
  const facet = (row, x) => [[step * row, x], [step * row, x + 10], [step * (row + 1), x + 10], [step * (row + 1), x]];
  return range(0, mesh - 1, 1).flatMap(row => range(0, 350, 10).map(x => facet(row, x).map(unit)));
}

function triangleFacets(a, b, c, mesh) {
  const at = (i, j) => sized(mix(1, times(mesh - i - j, a), 1, mix(i, b, j, c))), facets = [];
  for (let i = 0; i < mesh; i++) {
    for (let j = 0; j < mesh - i; j++) {
      facets.push([at(i, j), at(i + 1, j), at(i, j + 1)]);
      if (i + j < mesh - 1) facets.push([at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)]);
    }
  }
  return facets;
}

// Numbers from `first` to `last`, `step` apart, both included.
function range(first, last, step) {
  return Array.from({length: Math.floor((last - first) / step) + 1}, (_, k) => first + k * step);
}

// Meridians and circles of latitude, 30 degrees apart.
function graticule() {
  const turns = range(0, 360, 7.5), meridians = range(0, 150, 30), circles = range(30, 150, 30);
  return [...meridians.map(phi => turns.map(theta => unit([theta, phi]))),
    ...circles.map(theta => turns.map(phi => unit([theta, phi])))];
}
