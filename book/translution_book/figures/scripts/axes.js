// A point of a chart in pixels, [x, y], as `axes.Axes.at` places it: values beyond the axes move to the box's edge.
function place({box: [left, top, width, height], x: [first, last], y: ends, log}, x, y) {
  const level = value => log ? Math.log10(Math.max(value, 1e-300)) : value;
  const [low, high] = ends.map(level);
  const across = clip((x - first) / (last - first), 0, 1), up = clip((level(y) - low) / (high - low), 0, 1);
  return [short(left + width * across), short(top + height * (1 - up))];
}
