#!/usr/bin/env python3
"""Draws docs/images/{token,page,pair}.svg with the sizes of `lathe layouts --json`.

usage: draw_docs.py LATHE
"""

import json
import pathlib
import subprocess
import sys

IMAGES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images"
FILL = {"nope": "#a8cbe8", "rope": "#f3c78f", "key": "#a8cbe8", "value": "#b9dfb0",
        "scale": "#e79a9a", "pad": "#dddddd"}
INK = "#222222"
SOFT = "#666666"


class Svg:
    def __init__(self, width: int, height: int):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            'markerHeight="8" orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="#222222"/></marker>'
            '</defs>', f'<rect width="{width}" height="{height}" fill="white"/>']

    def box(self, x, y, w, h, fill, radius=0, stroke=INK, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" '
                          f'rx="{radius}" fill="{fill}" stroke="{stroke}"{dashed}/>')

    def text(self, x, y, text, anchor="start", size=13, color=INK, bold=False):
        weight = ' font-weight="bold"' if bold else ""
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
                          f'font-size="{size}" fill="{color}"{weight}>{text}</text>')

    def arrow(self, x1, y1, x2, y2):
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" '
                          'stroke-width="1.5" marker-end="url(#head)"/>')

    def save(self, name: str):
        (IMAGES / name).write_text("\n".join(self.parts + ["</svg>"]) + "\n")


def draw_token(layouts: list[dict]) -> None:
    """One token of each latent layout, with widths proportional to bytes."""
    shown = [e for e in layouts if not e["name"].startswith("gqa")]
    scale, left, row = 0.66, 130, 62
    svg = Svg(left + int(1152 * scale) + 110, 40 + row * len(shown))
    svg.text(10, 22, "One token, in bytes, to scale", bold=True, size=14)
    for i, layout in enumerate(shown):
        y = 50 + i * row
        svg.text(10, y + 18, layout["name"], bold=True)
        x = left
        for part in layout["parts"]:
            elem_bits = {"bf16": 16, "f32": 32, "e2m1": 4}.get(part["dtype"], 8)
            width = part["elems"] * elem_bits / 8 * scale
            svg.box(x, y, width, 26, FILL[part["role"]])
            label = f'{part["role"]} {part["dtype"]}[{part["elems"]}]'
            if width > 7 * len(label):
                svg.text(x + width / 2, y + 18, label, "middle", 12)
            elif width > 26:
                svg.text(x + width / 2, y + 18, part["role"], "middle", 11)
            x += width
        svg.text(x + 8, y + 18, f'{layout["bytes_per_token"]} B')
        small = [p for p in layout["parts"] if p["role"] in ("scale",)]
        for part in small:
            svg.text(left, y + 42, f'red: {part["elems"]} × {part["dtype"]} scale'
                     + ("" if part["plane"] == 0 else ", kept at the end of the page"),
                     size=11, color=SOFT)
    svg.save("token.svg")


def draw_page(layouts: list[dict]) -> None:
    """A page of four tokens with records in one plane, and with scales in a second one."""
    by_name = {e["name"]: e for e in layouts}
    svg = Svg(900, 330)
    svg.text(10, 24, "mla_fp8_block: one plane. A token's parts lie together.", bold=True)
    x = 20
    for token in range(4):
        for role, width in (("nope", 110), ("scale", 26), ("rope", 60)):
            svg.box(x, 50, width, 36, FILL[role])
            if role != "scale":
                svg.text(x + width / 2, 73, role, "middle", 12)
            x += width
        svg.text(x - 98, 104, f"token {token}", "middle", 12, SOFT)
    svg.text(20, 44, "0", size=11, color=SOFT)
    svg.text(216, 44, str(by_name["mla_fp8_block"]["bytes_per_token"]), size=11, color=SOFT)

    v4 = by_name["v4_fp8"]
    data = v4["parts"][0]["token_stride"]
    svg.text(10, 160, "v4_fp8: two planes. All tokens' data first, then all tokens' scales, then "
             "padding to a multiple of " + str(data) + ".", bold=True)
    x = 20
    for token in range(4):
        for role, width in (("nope", 96), ("rope", 50)):
            svg.box(x, 186, width, 36, FILL[role])
            svg.text(x + width / 2, 209, role, "middle", 12)
            x += width
        svg.text(x - 73, 240, f"token {token}", "middle", 12, SOFT)
    svg.text(20, 180, "0", size=11, color=SOFT)
    svg.text(166, 180, str(data), size=11, color=SOFT)
    svg.text(x, 180, f"{data} P", size=11, color=SOFT)
    for token in range(4):
        svg.box(x, 186, 30, 36, FILL["scale"])
        svg.text(x + 15, 240, str(token), "middle", 12, SOFT)
        x += 30
    svg.box(x, 186, 90, 36, FILL["pad"])
    svg.text(x + 45, 209, "padding", "middle", 12)
    svg.text(10, 290, "byte of part p of token i in a page of P tokens  =  start of p's plane  +  "
             "i × bytes of a record in that plane  +  offset of p in the record", size=13)
    svg.text(10, 312, "byte of slot s  =  (s ÷ P) × page stride  +  that, with i = s mod P",
             size=13)
    svg.save("page.svg")


def draw_pair(layouts: list[dict]) -> None:
    """A plan: one write operation, one cache, one read route for each phase."""
    size = {e["name"]: e["bytes_per_token"] for e in layouts}
    svg = Svg(920, 390)
    svg.text(10, 24, "A proved plan: flashmla_sparse (gather) prefill and trtllm (native) decode "
             "over one mla_fp8 cache", bold=True, size=14)
    svg.box(330, 50, 260, 50, "#eeeeee", 8)
    svg.text(460, 70, "rope + quantise + write", "middle", bold=True)
    svg.text(460, 88, "once per token, whatever the pair", "middle", 12, SOFT)
    svg.arrow(460, 100, 460, 148)
    svg.box(330, 150, 260, 66, FILL["nope"], 8)
    svg.text(460, 174, "cache mla_fp8", "middle", bold=True)
    svg.text(460, 193, f'{size["mla_fp8"]} B per token, e4m3 throughout', "middle", 12)
    svg.text(460, 209, "pages of 64", "middle", 12)

    svg.arrow(330, 183, 252, 183)
    svg.box(20, 150, 230, 66, FILL["rope"], 8)
    svg.text(135, 174, "adapter gather-decode", "middle", bold=True)
    svg.text(135, 193, f'{size["mla_fp8"]} → {size["mla_bf16"]} B per row,', "middle", 12)
    svg.text(135, 209, "only the rows that are needed", "middle", 12)
    svg.arrow(135, 216, 135, 268)
    svg.box(20, 270, 230, 66, FILL["value"], 8)
    svg.text(135, 294, "extend: gather", "middle", bold=True)
    svg.text(135, 313, "compact bf16 rows, RaggedRow", "middle", 12)
    svg.text(135, 329, "q arrives as bf16", "middle", 12)

    svg.arrow(590, 183, 668, 183)
    svg.box(670, 150, 230, 66, FILL["value"], 8)
    svg.text(785, 174, "decode: native", "middle", bold=True)
    svg.text(785, 193, "pages in place, Slot", "middle", 12)
    svg.text(785, 209, "q arrives as e4m3", "middle", 12)
    svg.text(785, 236, "verify and draft_extend too", "middle", 12, SOFT)

    svg.box(330, 270, 570, 66, "#ffffff", 8, stroke="#b03030", dash="5 4")
    svg.text(345, 294, f'over mla_fp8_block ({size["mla_fp8_block"]} B) the same decode kernel is rejected:', bold=True)
    svg.text(345, 316, "wanted: one number format; offered: e4m3 nope, bf16 rope", size=12)
    svg.text(10, 372, "The kernels never see each other. Each declares what it reads; the planner "
             "finds a layout and adapters that satisfy both, or says why there is none.", size=12,
             color=SOFT)
    svg.save("pair.svg")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    out = subprocess.run([sys.argv[1], "layouts", "--json"], capture_output=True, text=True,
                         check=True)
    layouts = json.loads(out.stdout)
    IMAGES.mkdir(parents=True, exist_ok=True)
    draw_token(layouts)
    draw_page(layouts)
    draw_pair(layouts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
