#!/usr/bin/env bash
# check_wheel.sh WHEEL [ROOT]: installs a wheel into a fresh environment and uses it: the module, the command, a model's answer.
# With ROOT, does so in that tree, a bare Debian without our libraries (made by debootstrap, with python3-venv). That needs root.
set -euo pipefail
wheel=$(realpath "${1:?usage: tools/check_wheel.sh WHEEL [ROOT]}")
root=${2:-}
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work" ${root:+"$root/lathe-check"}' EXIT
cp "$wheel" "$work"
cp -r "$here/models/tiny-v32" "$work"
# Brings numpy along, because a bare system may have no network.
"${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --no-deps \
  ${root:+--python-version "$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"} -d "$work" numpy
cat > "$work/check.sh" <<'EOF'
set -euo pipefail
cd "$(dirname "$0")"
${PYTHON:-python3} -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-index --find-links . lathe
venv/bin/lathe --version
venv/bin/lathe layouts > layouts.txt
head -3 layouts.txt
venv/bin/lathe generate --model tiny-v32 --device cpu --temperature 0 --max-new-tokens 16 --prompt "copy this"
venv/bin/python - <<'PY'
import sys

import lathe
import numpy as np

pool = np.zeros((1, lathe.Layout("mla_bf16").page_stride(64)), np.uint8)
lathe.encode(np.ones((1, 576), np.float32), [3], pool, "mla_bf16")
out, _ = lathe.attend(np.ones((1, 2, 576), np.float32), pool, "mla_bf16", indices=[[3]])
assert (out == 1).all() and "torch" not in sys.modules
with lathe.Engine("tiny-v32", device="cpu", context_length=512) as engine:
    print(engine.generate("copy this", max_new_tokens=4, temperature=0).text)
print("the wheel works with Python", sys.version.split()[0])
PY
EOF
if [ -n "$root" ]; then
  cp -r "$work" "$root/lathe-check"
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$root" bash /lathe-check/check.sh
else
  bash "$work/check.sh"
fi
