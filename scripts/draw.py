#!/usr/bin/env python3
"""Draws docs/pictures: the rooms of each layer on their floors (tests/arch/rooms.py), and
the course of a save, a load and a reshard.

    scripts/draw.py                        writes the pictures
    scripts/draw.py --check                exit status 1 when one is not what would be
    scripts/draw.py --terminal OUT COMMAND...   what a command prints, with its colours
"""

import html
import os
import re
import subprocess
import sys
import textwrap

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PICTURES = os.path.join(ROOT, "docs", "pictures")
sys.path.insert(0, os.path.join(ROOT, "tests", "arch"))
import rooms  # noqa: E402

WIDTH, MARGIN, GAP = 960, 20, 14
INK, FAINT, LINE, PAPER = "#1f2933", "#627282", "#9aa8b5", "#ffffff"
FILLS = ("#eef5fb", "#f3f0fa", "#eefaf1", "#fdf5e8", "#fbeef0")

# What happens, in order: phase, and its steps with the file that does each.
COURSES = {
    "save": ("dcp_save: all ranks", (
        ("plan", (
            ("gather what every rank holds", "libdcp/core/plan/local.c"),
            ("the same plan on every rank: replicas once, bytes balanced",
             "libdcp/core/plan/balance.c"),
        )),
        ("stage", (
            ("copy to staging, CRC-64 from the memory that training owns",
             "libdcp/core/write/stage.c"),
            ("dcp_save_start returns: training goes on", "libdcp/core/save.c"),
        )),
        ("write", (
            ("blocks: digest, codec, write", "libdcp/core/write/write.c"),
            ("sync, read back, agree", "libdcp/core/write/files.c"),
            ("parity over stripes of all shards", "libdcp/core/parity/code.c"),
        )),
        ("publish", (
            ("rank 0 writes the manifest, with fingerprints",
             "formats/native/write.c"),
            ("rename, sync of the parent: the commit", "libdcp/core/run/publish.c"),
            ("older steps are pruned", "libdcp/core/run/prune.c"),
        )),
    )),
    "load": ("dcp_load: all ranks, at any world size", (
        ("find", (
            ("the newest complete step; rank 0 decides", "libdcp/core/run/steps.c"),
            ("pin it, so that retention waits", "libdcp/core/run/pin.c"),
        )),
        ("plan", (
            ("rank 0 reads headers: the same catalog everywhere",
             "libdcp/core/catalog/pack.c"),
            ("copies from stored pieces to wanted ones", "libdcp/core/plan/plan.c"),
        )),
        ("read", (
            ("blocks, verified before a byte is given out",
             "libdcp/core/read/blocks.c"),
            ("through parity where one is bad", "libdcp/core/parity/reconstruction.c"),
            ("cast, place, to the device", "libdcp/core/read/copy.c"),
        )),
        ("prove", (
            ("records of other programs are read to their end",
             "libdcp/core/read/prove.c"),
            ("agree: all ranks return the same", "libdcp/core/collective/agree.c"),
        )),
    )),
    "reshard": ("dcp-reshard: one process, bounded memory", (
        ("read headers", (
            ("probe: which format is it", "formats/formats.c"),
            ("index: header bytes to a catalog", "formats/torch_dist/index.c"),
        )),
        ("plan", (
            ("choose: selection, names, dtypes", "libdcp/core/plan/choose.c"),
            ("cut for the world size, assign extents",
             "libdcp/core/plan/target.c"),
            ("copies, by place in the target", "libdcp/core/plan/plan.c"),
        )),
        ("stream", (
            ("read, verify, convert, hash, write", "libdcp/core/write/stream.c"),
            ("headers and tables of the format", "formats/deepspeed/files.c"),
        )),
        ("prove and publish", (
            ("fingerprints equal to the source's", "libdcp/core/integrity/fingerprint.c"),
            ("all of every record was read", "libdcp/core/integrity/proof.c"),
            ("rename: the commit", "libdcp/core/run/publish.c"),
        )),
    )),
}


class Drawing:
    """Pieces of an SVG, from the top down."""

    def __init__(self, title):
        self.parts, self.height = [], 52
        self.text(MARGIN, 32, title, 18, INK, "600")

    def text(self, x, y, words, size, color, weight="400"):
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')

    def box(self, x, y, w, h, fill):
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="8" '
            f'fill="{fill}" stroke="{LINE}"/>')

    def arrow(self, x1, y1, x2, y2):
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{FAINT}" '
            f'stroke-width="1.5" marker-end="url(#tip)"/>')

    def svg(self):
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
            f'height="{self.height:g}" viewBox="0 0 {WIDTH} {self.height:g}" '
            f'font-family="system-ui, sans-serif">\n'
            f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" '
            f'markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{FAINT}"/></marker></defs>\n'
            f'<rect width="100%" height="100%" fill="{PAPER}"/>\n'
            + "\n".join(self.parts) + "\n</svg>\n")


def wrapped(words, width):
    """Lines of text of 12.5 px that fit into a width."""
    return textwrap.wrap(words, max(8, int(width / 6.6)))


def draw_rooms(layer):
    """Floors from the top down: a room knows what stands below it."""
    d = Drawing(f"{layer}/: a room includes itself and rooms on floors below")
    for number, floor in reversed(list(enumerate(rooms.FLOORS[layer]))):
        n = len(floor)
        width = (WIDTH - 2 * MARGIN - (n - 1) * GAP) / n
        subjects = {room: wrapped(subject, width - 24) for room, subject in floor.items()}
        height = 46 + 16 * max(map(len, subjects.values()))
        for i, (room, subject) in enumerate(subjects.items()):
            x = MARGIN + i * (width + GAP)
            d.box(x, d.height, width, height, FILLS[number % len(FILLS)])
            d.text(x + 12, d.height + 22, room + "/" if room else layer + "/", 14, INK,
                   "600")
            for k, line in enumerate(subject):
                d.text(x + 12, d.height + 42 + 16 * k, line, 12.5, INK)
        d.height += height + GAP
    d.height += MARGIN - GAP
    return d.svg()


def draw_course(name):
    """Phases from the left to the right, the steps of each below one another."""
    title, phases = COURSES[name]
    d = Drawing(title)
    n = len(phases)
    gap = 34
    width = (WIDTH - 2 * MARGIN - (n - 1) * gap) / n
    top = d.height
    bottom = top
    for i, (phase, steps) in enumerate(phases):
        x, y = MARGIN + i * (width + gap), top
        d.text(x, y + 12, phase, 14, INK, "600")
        if i:
            d.arrow(x - gap + 6, top + 46, x - 6, top + 46)
        y += 24
        for k, (words, path) in enumerate(steps):
            if not os.path.exists(os.path.join(ROOT, path)):
                raise SystemExit(f"the course of a {name}: there is no {path}")
            lines = wrapped(words, width - 20)
            height = 32 + 16 * len(lines)
            if k:
                d.arrow(x + width / 2, y - 16, x + width / 2, y - 2)
            d.box(x, y, width, height, FILLS[i % len(FILLS)])
            for line_no, line in enumerate(lines):
                d.text(x + 10, y + 20 + 16 * line_no, line, 12.5, INK)
            shown = path.removeprefix("libdcp/")
            d.text(x + 10, y + height - 10, shown, 10.5, FAINT)
            y += height + 18
        bottom = max(bottom, y)
    d.height = bottom - 18 + MARGIN
    return d.svg()


# -- what a terminal shows ---------------------------------------------------------------

CELL, ROW = 7.83, 17  # of 13 px monospace
BASIC = {30: "#1f2933", 31: "#c0392b", 32: "#1e8449", 33: "#9a7d0a", 34: "#2e6da4",
         35: "#7d3c98", 36: "#1b7f8c", 37: "#4a5560"}


def color256(n):
    """One of the 256 colours of a terminal."""
    if n >= 232:
        level = 8 + 10 * (n - 232)
        return f"#{level:02x}{level:02x}{level:02x}"
    levels = (0, 95, 135, 175, 215, 255)
    n -= 16
    return "#%02x%02x%02x" % (levels[n // 36], levels[n // 6 % 6], levels[n % 6])


def styled(line):
    """Runs of a line: text, colour, background, weight."""
    color, back, weight = INK, None, "400"
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not part.startswith("\x1b"):
            if part:
                yield part, color, back, weight
            continue
        codes = [int(c or 0) for c in part[2:-1].split(";")]
        while codes:
            code = codes.pop(0)
            if code == 0:
                color, back, weight = INK, None, "400"
            elif code == 1:
                weight = "700"
            elif code == 2:
                color = FAINT
            elif code in BASIC:
                color = BASIC[code]
            elif code in (38, 48):
                found = color256(codes[1])
                codes = codes[2:]
                color, back = (found, back) if code == 38 else (color, found)


def draw_terminal(command):
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = text.rstrip("\n").split("\n")
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    width = MARGIN * 2 + CELL * max(map(len, plain))
    height = MARGIN * 2 + ROW * len(lines)
    parts = []
    for row, line in enumerate(lines):
        column, y = 0, MARGIN + ROW * row
        for words, color, back, weight in styled(line):
            x, n = MARGIN + column * CELL, len(words)
            if back:
                parts.append(f'<rect x="{x:.1f}" y="{y}" width="{n * CELL:.1f}" '
                             f'height="{ROW}" fill="{back}"/>')
            if words.strip():
                parts.append(
                    f'<text x="{x:.1f}" y="{y + 13}" fill="{color}" '
                    f'font-weight="{weight}" textLength="{n * CELL:.1f}" '
                    f'xml:space="preserve">{html.escape(words)}</text>')
            column += n
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
            f'height="{height}" viewBox="0 0 {width:.0f} {height}" font-size="13" '
            f'font-family="ui-monospace, DejaVu Sans Mono, Menlo, monospace">\n'
            f'<rect width="100%" height="100%" rx="8" fill="#fbfcfd" stroke="{LINE}"/>\n'
            + "\n".join(parts) + "\n</svg>\n")


def pictures():
    for layer in rooms.FLOORS:
        yield f"rooms-{os.path.basename(layer)}.svg", draw_rooms(layer)
    for name in COURSES:
        yield f"course-{name}.svg", draw_course(name)


def main():
    if sys.argv[1:2] == ["--terminal"]:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(draw_terminal(sys.argv[3:]))
        return 0
    check = sys.argv[1:] == ["--check"]
    stale = 0
    os.makedirs(PICTURES, exist_ok=True)
    for name, svg in pictures():
        path = os.path.join(PICTURES, name)
        old = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
        if old == svg:
            continue
        if check:
            print(f"docs/pictures/{name} is not what scripts/draw.py draws")
            stale = 1
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(svg)
    return stale


if __name__ == "__main__":
    sys.exit(main())
