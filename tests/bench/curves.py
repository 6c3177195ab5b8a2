"""Draws docs/pictures/scale.svg: seconds and memory against bytes, tensors and ranks, both
axes logarithmic, from the lines with a "curve" that tests/bench/scale keeps."""

import html
import math

WIDTH, HEIGHT, TOP, LEFT = 960, 668, 66, 62
PLOT, ROW, GAP_X, GAP_Y = 262, 210, 40, 62
MARGIN = 0.12  # decades beside the points
COLUMNS = (
    ("bytes", "bytes of the state", "2 ranks, 50 tensors"),
    ("tensors", "tensors of 64 B", "8 ranks"),
    ("ranks", "ranks, told of and not run", "200 tensors"),
)
ROWS = (("seconds", "seconds"), ("mib", "MiB, largest rank"))
# What a line is of: its class, and the shape of its points.
LINES = {
    "save": ("a", "circle"), "load": ("b", "square"), "rank 0 saves": ("a", "circle"),
    "a rank saves": ("c", "triangle"), "a rank loads": ("b", "square"),
}
STYLE = """
.paper { fill: #ffffff } .ink { fill: #1f2933 } .faint { fill: #5a6978 }
.grid { stroke: #e4e9ee } .axis { stroke: #9aa8b5 }
.slope { stroke: #788797; stroke-dasharray: 3 4; fill: none }
.a { stroke: #1f6fc2; fill: #1f6fc2 } .b { stroke: #c25a0e; fill: #c25a0e }
.c { stroke: #2e8540; fill: #2e8540 }
.line { fill: none; stroke-width: 2 } .word { stroke: none }
@media (prefers-color-scheme: dark) {
.paper { fill: #12171d } .ink { fill: #e6ebf0 } .faint { fill: #9fb0c0 }
.grid { stroke: #252d36 } .axis, .slope { stroke: #65758a }
.a { stroke: #6cb2f5; fill: #6cb2f5 } .b { stroke: #f59e5b; fill: #f59e5b }
.c { stroke: #74c985; fill: #74c985 } .line { fill: none } .word { stroke: none }
}
"""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(exponent, of_bytes):
    """A power of ten as people say it."""
    if of_bytes and exponent >= 3:
        return f"{10 ** (exponent % 3)} {'kMGT'[exponent // 3 - 1]}B"
    if -3 <= exponent <= 4:
        return f"{10 ** exponent:,}" if exponent >= 0 else f"{10.0 ** exponent:g}"
    return "10" + str(exponent).translate(SUPERSCRIPTS)


class Axis:
    """Logarithms of numbers on a length that begins at a place; a negative length goes up."""

    def __init__(self, numbers, place, length, whole):
        self.low, self.high = (math.log10(f(numbers)) for f in (min, max))
        if whole:  # decades
            self.low, self.high = math.floor(self.low), math.ceil(self.high)
        else:
            self.low, self.high = self.low - MARGIN, self.high + MARGIN
        self.place, self.length = place, length

    def at(self, value):
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return self.place + part * self.length

    def decades(self):
        return range(math.ceil(self.low), math.floor(self.high) + 1)


def text(x, y, words, classes="faint", anchor="start", size=12, more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" class="{classes}" '
            f'text-anchor="{anchor}"{more}>{html.escape(words)}</text>')


def mark(shape, x, y):
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    if shape == "square":
        return f'<rect x="{x - 3.6:.1f}" y="{y - 3.6:.1f}" width="7.2" height="7.2"/>'
    return f'<path d="M{x:.1f} {y - 4.8:.1f} l4.6 8 h-9.2 z"/>'


def slope(x, y, last):
    """The line along which y grows as x does, to the last point of a curve."""
    room = min(math.log10(last[0]) - x.low, math.log10(last[1]) - y.low)
    begin = last[0] / 10**room, last[1] / 10**room
    return (f'<path class="slope" d="M{x.at(begin[0]):.1f} {y.at(begin[1]):.1f} '
            f'L{x.at(last[0]):.1f} {y.at(last[1]):.1f}"/>')


def plot(points, curve, value, left, top, y):
    xs = [p["x"] for p in points]
    x = Axis(xs, left, PLOT, False)
    out = []
    for e in x.decades():
        at = x.at(10.0 ** e)
        out.append(f'<path class="grid" d="M{at:.1f} {top} v{ROW}"/>')
        out.append(text(at, top + ROW + 17, number(e, curve == "bytes"), anchor="middle"))
    for e in y.decades():
        at = y.at(10.0 ** e)
        out.append(f'<path class="grid" d="M{left} {at:.1f} h{PLOT}"/>')
        if curve == COLUMNS[0][0]:
            out.append(text(left - 8, at + 4, number(e, False), anchor="end"))
    out.append(f'<path class="axis" fill="none" d="M{left} {top} v{ROW} h{PLOT}"/>')
    out.append(slope(x, y, max((p["x"], p[value]) for p in points)))
    heads = []
    for what in dict.fromkeys(p["what"] for p in points):
        classes, shape = LINES[what]
        line = sorted((p["x"], p[value]) for p in points if p["what"] == what)
        places = [(x.at(a), y.at(b)) for a, b in line]
        out.append(f'<g class="{classes}"><polyline class="line" points="'
                   + " ".join(f"{a:.1f},{b:.1f}" for a, b in places) + '"/>'
                   + "".join(mark(shape, a, b) for a, b in places) + "</g>")
        heads.append((what, classes, shape))
    return out, heads


def legend(heads, left, top):
    out, at = [], left
    for what, classes, shape in heads:
        out.append(f'<g class="{classes}">{mark(shape, at + 4, top - 4)}</g>')
        out.append(text(at + 13, top, what, "ink"))
        at += 24 + 6.1 * len(what)
    return out


def draw(points):
    """The picture of such lines, or None where a curve is missing."""
    if {p["curve"] for p in points} < {name for name, *_ in COLUMNS}:
        return None
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif">',
           f"<style>{STYLE}</style>", '<rect class="paper" width="100%" height="100%"/>',
           text(20, 30, "Time and memory of a save and of a load", "ink", size=18,
                more=' font-weight="600"')]
    for r, (value, label) in enumerate(ROWS):
        top = TOP + 44 + r * (ROW + GAP_Y)
        y = Axis([p[value] for p in points], top + ROW, -ROW, True)
        out.append(text(18, top + ROW / 2, label, "ink", "middle",
                        more=f' transform="rotate(-90 18 {top + ROW / 2})"'))
        for c, (curve, axis, fixed) in enumerate(COLUMNS):
            left = LEFT + c * (PLOT + GAP_X)
            drawn, heads = plot([p for p in points if p["curve"] == curve], curve, value,
                                left, top, y)
            out += drawn
            if r == 0:
                out.append(text(left, TOP, f"{axis}; {fixed}", "ink"))
                out += legend(heads, left, TOP + 24)
            else:
                out.append(text(left + PLOT / 2, top + ROW + 36, axis, "ink", "middle"))
    out.append(f'<path class="slope" d="M{LEFT} {HEIGHT - 20} h34"/>')
    out.append(text(LEFT + 42, HEIGHT - 16,
                    "linear, to the last point of the highest line: what lies above is a fixed "
                    "cost. Memory is that of the largest rank beside its tensors."))
    return "\n".join(out) + "\n</svg>\n"
