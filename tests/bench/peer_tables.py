"""Tables of docs/PERFORMANCE.md of what is beside programs that users have today: results of
convert, codec and python_saves."""

GIB = 1 << 30


def cells(*row):
    return f"| {' | '.join(row)} |"


def bold(text, missed):
    return f"**{text}**" if missed else text


def conversions(rows):
    """Seconds until the result is durable, and the most memory that it took."""
    lines = [cells("from, to", "GiB", "s, MiB", "cp: s", "×", "peer: s, MiB", "faster",
                   "less memory"), "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        seconds, mib = row["seconds"], {k: v / 2**20 for k, v in row["peak_bytes"].items()}
        speed, memory = row["peer_time_ratio"], row["peer_memory_ratio"]
        lines.append(cells(
            row["case"], f"{row['size_bytes'] / GIB:.2f}",
            f"{seconds['ours']:.2f}, {mib['ours']:.0f}", f"{seconds['cp']:.2f}",
            bold(f"{row['to_floor']:.2f}", row["to_floor"] > row["aim_floor"])
            + f" ≤ {row['aim_floor']}",
            f"{row['peer']} {seconds['peer']:.2f}, {mib['peer']:.0f}",
            bold(f"{speed:.0f}", speed < row["aim_time"]) + f" ≥ {row['aim_time']}",
            bold(f"{memory:.0f}", memory < row["aim_memory"]) + f" ≥ {row['aim_memory']}"))
    return "\n".join(lines) + "\n"


def codecs(rows):
    """How many times smaller, and GB a second of a core, in and out."""
    names = list(dict.fromkeys(row["codec"] for row in rows))
    lines = ["How many times smaller, and GB a second of a core in and out. `openzl float` is its",
             "own codec for each kind of float, `openzl generic` that for any numbers.\n",
             cells("tensors", *names), "|---|" + "--:|" * len(names)]
    for case in dict.fromkeys(row["case"] for row in rows):
        found = {row["codec"]: row for row in rows if row["case"] == case}
        lines.append(cells(case, *(
            bold(f"{row['raw_bytes'] / row['coded_bytes']:.2f} ×, {row['in_gb_s']:.1f}, "
                 f"{row['out_gb_s']:.1f}", not row["met"])
            for row in map(found.get, names))))
    return "\n".join(lines) + "\n"


def training(rows):
    """Seconds of each way to save and load, and how many times ours."""
    acts = list(dict.fromkeys(row["act"] for row in rows if "who" in row))
    lines = ["Seconds of ranks of PyTorch, and how many times ours; what is measured:",
             "[docs/PYTHON.md](PYTHON.md#speed). A peer that is faster than we is bold.\n"]
    for what in dict.fromkeys(row["what"] for row in rows):
        lines += [cells(what, *acts), "|---|" + "--:|" * len(acts)]
        for who in dict.fromkeys(row["who"] for row in rows if "who" in row):
            found = {row["act"]: row for row in rows
                     if row["what"] == what and row.get("who") == who}
            lines.append(cells(who, *(
                bold(f"{row['seconds']:.3f}, {row['seconds'] / row['ours']:.1f} ×",
                     row["seconds"] < row["ours"]) if row else ""
                for row in map(found.get, acts))))
        lines.append("")
    return "\n".join(lines)


TABLES = {"convert": ("Conversions", conversions), "codec": ("Codecs", codecs),
          "python_saves": ("From Python", training)}


def parts_of(lines):
    """Headings and what stands below them, of the benches that were run."""
    for bench, (heading, draw) in TABLES.items():
        rows = [line for line in lines if line.get("bench") == bench]
        if rows:
            yield heading, draw(rows)
