// The cells of a map, one path for each level, as `levels.cells` writes them: a character is a cell, "O" is zero, those
// before and after it are the levels of either sign, "~" is outside.
function paintOf(code, [above, below, outside]) {
  if (code === "~") return `fill="${outside}" fill-opacity=".25"`;
  const level = code.charCodeAt(0) - 79, opacity = Number((Math.abs(level) / 31).toFixed(3));
  return `fill="${level < 0 ? below : above}" fill-opacity="${opacity}"`;
}

function cells(map, width, colours) {
  const paths = {};
  for (let start = 0; start < map.length; start += width) {
    const runs = map.slice(start, start + width).match(/(.)\1*/g);
    let column = 0;
    for (const run of runs) {
      paths[run[0]] = `${paths[run[0]] || ""}M${column} ${start / width}h${run.length}v1h-${run.length}z`;
      column += run.length;
    }
  }
  const codes = Object.keys(paths).sort().filter(code => code !== "O");
  return codes.map(code => `<path d="${paths[code]}" ${paintOf(code, colours)}/>`).join("");
}
