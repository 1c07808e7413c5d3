#!/usr/bin/env python3
"""Embeds the server's page in a C++ file, with the hashes of its script and style.

usage: embed_page.py PAGE OUT
"""

import base64
import hashlib
import pathlib
import re
import sys


def block(html: str, tag: str) -> str:
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
    if len(found) != 1:
        sys.exit(f"embed_page: wanted one <{tag}>, found {len(found)}")
    return found[0]


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


TEXT = """// Made by tools/embed_page.py.
#include "server/page/page.h"

namespace lathe {
namespace {
constexpr unsigned char kHtml[] = {
%s};
}  // namespace

const PageData kPage = {{reinterpret_cast<const char*>(kHtml), sizeof kHtml},
                        "\\"%s\\"",
                        "%s",
                        "%s"};
}  // namespace lathe
"""


def main() -> None:
    page, out = map(pathlib.Path, sys.argv[1:])
    html = page.read_text()
    data = html.encode()
    lines = "".join(",".join(str(b) for b in data[i:i + 40]) + ",\n" for i in range(0, len(data), 40))
    etag = hashlib.sha256(data).hexdigest()[:16]
    out.write_text(TEXT % (lines, etag, digest(block(html, "script")), digest(block(html, "style"))))


if __name__ == "__main__":
    main()
