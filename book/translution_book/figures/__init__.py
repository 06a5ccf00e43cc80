"""Figures for the page: drawings that follow the theme, and figures that move with and without a kernel.

```python
from translution_book import figures

figures.use_style()                                           # once, before drawing
fig, ax = plt.subplots()                                      # draw in black what shall take the page's text colour
figures.show(fig, alt="What the figure shows.", caption="…")  # the value of a cell: an inline SVG
figures.palette.blue, figures.palette[1]                      # blue orange green purple ochre grey, ink, paper
figures.palette.sequential, figures.palette.diverging         # colormaps: zero is transparent
figures.palette.categorical(12)                               # a list of colours for ids

# Static plots: each draws into `ax=` if given, and gives the matplotlib figure for `show`.
figures.heatmap(matrix, text=".2f", xlabel="key j", ylabel="query i", colorbar="weight")    # cmap="diverging", …
figures.relation_table(offsets((3, 3)), text=True)            # ids by colour; masked pairs hatched
figures.token_grid(weights[0], (7, 7))                        # one value per token, on its grid
figures.kernel_taps(kernel[:, :, 0, 0])                       # taps around zero
figures.bars({"self-attention": 3.2, "translution": 7.9}, xlabel="million parameters")
figures.loglog(n, {"attention": a, "translution": t}, xlabel="tokens n", ylabel="MACs")

# Figures that move. Each holds a slider; without JavaScript, and in print, it shows its start.
figures.frames(draw, [1, 2, 4, 8], label="relative dimension r", alt=lambda r: f"… for r = {r}")   # draw(r) -> figure
figures.pointer_map(weights, (7, 7), alt="…", image=digit)    # (n, n): a query's row follows the pointer; cls=True
figures.linked_maps((3, 3), matrices, alt="…", cmap="diverging", text=1)      # cell i on the left shows matrices[i]
figures.relation_map(offsets((3, 3)), alt="…")                # a pair lights up all pairs that share its parameters

# The page itself computes softmax attention: draw, move, see which encoding follows. One head per Encoding, (★) of the
# taxonomy: a_ij = f_i A fⱼᵀ + f_i bᵀ + c fⱼᵀ + d, v_ij = f_j B + r; each shared, or one per offset.
heads = {"scalar bias": figures.Encoding(A, B, d=bias), "absolute": figures.Encoding(A, B, absolute=e)}
figures.draw_and_move((7, 7), heads, alt="…", backgrounds={"zero": (0, 0), "grey": (0, 1)}, layers=(1, 2))

# What contains what; an arrow shows its statement and proof. Nodes lie at (column, row).
nodes = {"rope": figures.Node("rotations", (0, 0), "…"), "t": figures.Node("Translution", (0, 1), "…")}
arrows = [figures.Arrow("rope", "t", "statement", "proof", {"largest difference": "…"}, "#thm-…", holds=True)]
figures.diagram(nodes, arrows, alt="…")

maps = [figures.OffsetMap("bias", bias), figures.OffsetMap("vectors", vectors, show="cosine")]     # "norm", "angle"
figures.side_by_side(offsets((5, 5)), maps, alt="…")          # parameters per offset under one pointer

# Parallel transport in the page: drag the globe and the corners; places are (colatitude θ, longitude φ) in degrees.
figures.globe({"octant": {"N": (0, 0), "A": (90, 0), "B": (90, 90)}, "circle": 60}, alt="…", bearing=0)

# Estimates of exp(x·y) by trigonometric and positive random features, drawn in the page, and their exact variances.
figures.estimator(alt="…", m=32, norms=(1.0, 1.0), angle=60)  # equal="features": 2m draws for the positive ones

# A picture shifted by a slider: by name, one map (h, w) for every shift; what did not follow, and the change, beside.
figures.shifted(digit, {"no position": y0, "strategy 2": y2}, range(-8, 9), alt="…", query=(10, 12))

# A picture dragged over a grid of patches: what it covers, the offsets that it needs, what was measured at that place.
figures.placement(digit, {"Translution": rates}, alt="…", canvas=84, patch=12)        # rates: squares over corners

# A long table with a choice for every filter, a search for words, and bars that count the rows shown.
rows = {"claim-1": [["a claim"], [figures.Tag("holds", figures.palette.green), figures.Link("proof", "#thm-…")]]}
figures.filter_table(["claim", "status"], rows, {"status": ["holds"], "table": ["2"]}, alt="…", caption="…",
                     bars=("table", {"holds": figures.palette.green}))

# Accuracy against cost: a mark for every run; the reader chooses task, test and the measure of cost.
run = figures.Run("seed 0", "translution", "MNIST", "static", (1_448_432, 23_914), {"static": 97.5})
figures.trade_off([run], ["multiply–adds", "parameters"], alt="…", upward="accuracy in %")

figures.overview()                                            # the four operators in one still figure (no `show`)
figures.overview_svg()                                        # the same as the text of an SVG file
```

Outputs are `Output` objects: HTML for the page, ``figure: <alt>`` in a terminal, and under a kernel `frames` is a live
ipywidget. Their bytes depend on their arguments alone. What moves them in the page are the plain files in `scripts/`.
"""

from .attention_map import attention_map
from .diagram import Arrow, Node, diagram
from .draw import draw_and_move
from .encoding import Encoding
from .estimator import estimator
from .filter_table import Link, Tag, filter_table
from .globe import globe
from .interactive import frames
from .linked import linked_maps, pointer_map
from .output import Output, show
from .placement import placement
from .plots import bars, heatmap, kernel_taps, loglog, relation_table, token_grid
from .relation_map import relation_map
from .shifted import shifted
from .side_by_side import OffsetMap, side_by_side
from .story import overview, overview_svg
from .style import Palette, palette, use_style
from .trade_off import Run, trade_off

__all__ = [
    "Arrow",
    "Encoding",
    "Link",
    "Node",
    "OffsetMap",
    "Output",
    "Palette",
    "Run",
    "Tag",
    "attention_map",
    "bars",
    "diagram",
    "draw_and_move",
    "estimator",
    "filter_table",
    "frames",
    "globe",
    "heatmap",
    "kernel_taps",
    "linked_maps",
    "loglog",
    "overview",
    "overview_svg",
    "palette",
    "placement",
    "pointer_map",
    "relation_map",
    "relation_table",
    "shifted",
    "show",
    "side_by_side",
    "token_grid",
    "trade_off",
    "use_style",
]
