#!/usr/bin/env python3
"""Draws the data-flow figures of docs/kernels.md from docs/images/kernels.txt, whose header describes the syntax.

usage: draw_kernels.py (--write | --check)

--check exits with 1 if a figure is out of date. Arrows and text outside boxes are a grey that is readable on dark and light pages.
"""

import pathlib
import sys

IMAGES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images"
FILL = {"mem": "#dddddd", "smem": "#a8cbe8", "load": "#f3c78f", "math": "#b9dfb0", "out": "#dddddd", "via": ""}
INK, GREY = "#1b1b1b", "#848d97"
BOX_WIDTH, LINE, GAP_X, GAP_Y, LEFT, TOP = 192, 16, 40, 22, 10, 66
MAX_HEADING, MAX_TEXT = 24, 30  # characters that fit a box in a wide font


def read_figures(text: str) -> list[dict]:
    figures = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0] == "#" or words[0].startswith("#"):
            continue
        if words[0] == "figure":
            figures.append({"name": words[1], "title": " ".join(words[2:]), "columns": [], "boxes": {}, "arrows": []})
        elif words[0] == "column":
            figures[-1]["columns"].append({"heading": " ".join(words[1:]), "ids": []})
        elif words[1] == ">":
            for name in (words[0], words[2]):
                if name not in figures[-1]["boxes"]:
                    sys.exit(f"draw_kernels: line {number}: no box {name}")
            figures[-1]["arrows"].append((words[0], words[2]))
        elif words[1] in FILL:
            lines = [part.strip() for part in " ".join(words[2:]).split(";")]
            for i, part in enumerate(lines):
                if len(part) > (MAX_TEXT if i else MAX_HEADING):
                    sys.exit(f"draw_kernels: line {number}: wanted at most {MAX_TEXT if i else MAX_HEADING} characters, got '{part}'")
            figures[-1]["boxes"][words[0]] = {"kind": words[1], "lines": lines, "column": len(figures[-1]["columns"]) - 1}
            figures[-1]["columns"][-1]["ids"].append(words[0])
        else:
            sys.exit(f"draw_kernels: line {number}: wanted one of {', '.join(FILL)}, got {words[1]}")
    return figures


def place(figure: dict) -> int:
    """Sets x, y, w, h of boxes; columns are centred on the tallest. Returns the height."""
    boxes = figure["boxes"]
    for box in boxes.values():
        box["h"] = 0 if box["kind"] == "via" else 14 + LINE * len(box["lines"])
    heights = [sum(boxes[i]["h"] + GAP_Y for i in column["ids"]) - GAP_Y for column in figure["columns"]]
    for c, column in enumerate(figure["columns"]):
        y = TOP + (max(heights) - heights[c]) / 2
        for name in column["ids"]:
            boxes[name].update(x=LEFT + c * (BOX_WIDTH + GAP_X), y=y, w=BOX_WIDTH)
            y += boxes[name]["h"] + GAP_Y
    return int(TOP + max(heights) + 14)


def ends(a: dict, b: dict) -> tuple[float, float, float, float]:
    if a["column"] == b["column"]:
        x = a["x"] + a["w"] / 2
        return (x, a["y"] + a["h"], x, b["y"]) if a["y"] < b["y"] else (x, a["y"], x, b["y"] + b["h"])
    if a["column"] < b["column"]:
        return a["x"] + a["w"], a["y"] + a["h"] / 2, b["x"], b["y"] + b["h"] / 2
    return a["x"], a["y"] + a["h"] / 2 + 8, b["x"] + b["w"], b["y"] + b["h"] / 2 + 8


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def draw(figure: dict) -> str:
    height = place(figure)
    width = LEFT * 2 + len(figure["columns"]) * (BOX_WIDTH + GAP_X) - GAP_X
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif" font-size="12">',
           f'<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
           f'<path d="M0 0 L10 5 L0 10 z" fill="{GREY}"/></marker></defs>',
           f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold" fill="{GREY}">{escaped(figure["title"])}</text>']
    for c, column in enumerate(figure["columns"]):
        x = LEFT + c * (BOX_WIDTH + GAP_X) + BOX_WIDTH / 2
        svg.append(f'<text x="{x:.0f}" y="48" text-anchor="middle" fill="{GREY}">{escaped(column["heading"])}</text>')
    for a, b in figure["arrows"]:
        x1, y1, x2, y2 = ends(figure["boxes"][a], figure["boxes"][b])
        head = "" if figure["boxes"][b]["kind"] == "via" else ' marker-end="url(#head)"'
        svg.append(f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{GREY}" stroke-width="1.5"{head}/>')
    for box in figure["boxes"].values():
        if box["kind"] == "via":
            x1, x2, y = box["x"], box["x"] + box["w"], box["y"]
            svg.append(f'<line x1="{x1:.0f}" y1="{y:.0f}" x2="{x2:.0f}" y2="{y:.0f}" stroke="{GREY}" stroke-width="1.5"/>')
            continue
        svg.append(f'<rect x="{box["x"]:.0f}" y="{box["y"]:.0f}" width="{box["w"]}" height="{box["h"]}" rx="6" '
                   f'fill="{FILL[box["kind"]]}"/>')
        for i, line in enumerate(box["lines"]):
            weight = ' font-weight="bold"' if i == 0 else ""
            svg.append(f'<text x="{box["x"] + box["w"] / 2:.0f}" y="{box["y"] + 19 + LINE * i:.0f}" text-anchor="middle" '
                       f'fill="{INK}"{weight}>{escaped(line)}</text>')
    return "\n".join(svg + ["</svg>"]) + "\n"


def main() -> int:
    if sys.argv[1:] not in (["--write"], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    differ = False
    for figure in read_figures((IMAGES / "kernels.txt").read_text()):
        path, fresh = IMAGES / f'kernel-{figure["name"]}.svg', draw(figure)
        if path.exists() and path.read_text() == fresh:
            continue
        if sys.argv[1] == "--write":
            path.write_text(fresh)
        else:
            differ = True
            print(f"draw_kernels: {path.name} does not match docs/images/kernels.txt; make docs rewrites it", file=sys.stderr)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
