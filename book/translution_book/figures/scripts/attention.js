// Softmax attention on a grid, as `encoding.attend` computes it. A head reads its matrices M (score) and N (value) at
// `ids[offset]`; the id −1 is a masked pair. Tokens get a last channel 1, which turns vectors and biases into matrices.

function dot(a, b) {
  return a.reduce((sum, value, k) => sum + value * b[k], 0);
}

function softmax(scores) {
  const most = Math.max(...scores), powers = scores.map(score => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map(power => power / sum);
}

// The number of the offset from key to query, row-major from the most negative one.
function offsetOf(query, key, [height, width]) {
  const down = Math.floor(query / width) - Math.floor(key / width), right = query % width - key % width;
  return (down + height - 1) * (2 * width - 1) + right + width - 1;
}

function extend(head, tokens) {
  return tokens.map((token, i) => [...token.map((value, c) => value + (head.e ? head.e[i][c] : 0)), 1]);
}

function addValue(output, weight, token, matrix) {
  token.forEach((value, c) => matrix[c].forEach((entry, e) => { output[e] += weight * value * entry; }));
}

// Attention, the mean over heads, and output, their sum.
function attend(heads, tokens, shape) {
  const weights = tokens.map(() => tokens.map(() => 0));
  const output = tokens.map(() => heads[0].N[0][0].map(() => 0));
  for (const head of heads) {
    const extended = extend(head, tokens);
    extended.forEach((token, query) => {
      const ids = tokens.map((_, key) => head.ids[offsetOf(query, key, shape)]);
      const score = (id, key) => id < 0 ? -Infinity : dot(token, head.M[id].map(row => dot(row, extended[key])));
      softmax(ids.map(score)).forEach((weight, key) => {
        if (!weight) return;
        weights[query][key] += weight / heads.length;
        addValue(output[query], weight, extended[key], head.N[ids[key]]);
      });
    });
  }
  return [weights, output];
}
