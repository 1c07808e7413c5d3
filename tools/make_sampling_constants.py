#!/usr/bin/env python3
"""Computes the constants of src/kernels/sampling_math.h, and known answers for its test.

Philox is implemented here from its definition and checked against its authors' published answers,
so the table shares no code with philox.h. The coefficients are a weighted least-squares fit at
Chebyshev nodes, with weights that converge to the minimax fit (Lawson's method).

Usage:  make_sampling_constants.py                 write src/kernels/sampling_noise.inc
        make_sampling_constants.py --check         compare it with the file in place
        make_sampling_constants.py --coefficients  print the fits; needs mpmath, half a minute
"""

import pathlib
import sys

OUTPUT = pathlib.Path(__file__).resolve().parents[1] / "src" / "kernels" / "sampling_noise.inc"
MASK = 0xFFFFFFFF

# kat_vectors of Random123, philox4x32 with 10 rounds: counter, key, answer.
PUBLISHED = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
)


def philox(counter, key):
    for _ in range(10):
        high = [(m * c) >> 32 for m, c in ((0xD2511F53, counter[0]), (0xCD9E8D57, counter[2]))]
        low = [(m * c) & MASK for m, c in ((0xD2511F53, counter[0]), (0xCD9E8D57, counter[2]))]
        counter = (high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0])
        key = ((key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK)
    return counter


def noise(seed, position, token):
    """The noise times 2^53, an odd integer."""
    words = philox((position & MASK, position >> 32, token // 2, 1), (seed & MASK, seed >> 32))
    pair = words[2:] if token % 2 else words[:2]
    return 2 * ((pair[0] << 32 | pair[1]) >> 12) + 1


def table():
    seeds = (0, 1, 42, 1 << 32, 0x0123456789ABCDEF, (1 << 64) - 1)
    places = ((0, 0), (0, 1), (0, 2), (1, 0), (7, 129279), (1 << 32, 5), ((1 << 64) - 1, (1 << 31) - 1),
              (4095, 151935))
    lines = ["// Written by tools/make_sampling_constants.py: seed, position, token, noise.", ""]
    for seed in seeds:
        for position, token in places:
            n = noise(seed, position, token)
            lines.append(f"{{0x{seed:x}, 0x{position:x}, {token}, 0x{n:x}p-53}},")
    return "\n".join(lines) + "\n"


def fit(mp, function, weight, low, high, degree, fixed):
    nodes = 240
    xs = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / nodes) for i in range(nodes)]
    free = [j for j in range(degree + 1) if j not in fixed]
    emphasis = [mp.mpf(1)] * nodes
    for _ in range(25):
        a, b = mp.matrix(len(free), len(free)), mp.matrix(len(free), 1)
        for e, x in zip(emphasis, xs):
            w = e * weight(x) ** 2
            rest = function(x) - sum(v * x**j for j, v in fixed.items())
            powers = [x**j for j in free]
            for r, p in enumerate(powers):
                b[r] += w * p * rest
                for c, q in enumerate(powers):
                    a[r, c] += w * p * q
        solved = mp.lu_solve(a, b)
        found = dict(fixed) | {j: solved[k] for k, j in enumerate(free)}
        errors = [abs(weight(x) * (sum(found[j] * x**j for j in found) - function(x))) for x in xs]
        emphasis = [e * v for e, v in zip(emphasis, errors)]
        total = sum(emphasis)
        emphasis = [e / total * nodes for e in emphasis]
    return [found[j] for j in range(degree + 1)], max(errors)


def print_coefficients():
    import mpmath as mp

    mp.mp.prec = 200
    tiny = mp.mpf(10) ** -10

    def exponential(r):
        return mp.mpf(1) / 2 + r / 6 + r * r / 24 if abs(r) < tiny else (mp.exp(r) - 1 - r) / r**2

    def logarithm(z):
        s = mp.sqrt(z)
        return mp.mpf(2) / 3 + z * 2 / 5 if z < tiny**2 else (mp.log((1 + s) / (1 - s)) - 2 * s) / s**3

    half = mp.log(2) / 2 * mp.mpf("1.00001")
    largest = (3 - 2 * mp.sqrt(2)) ** 2 * mp.mpf("1.0001")
    for name, found in (
        ("kExp", fit(mp, exponential, lambda r: r * r / mp.exp(r), -half, half, 9, {0: mp.mpf(1) / 2})),
        ("kLog", fit(mp, logarithm, lambda z: z / 2, mp.mpf(0), largest, 6, {})),
    ):
        coefficients, error = found
        print(f"{name}: relative error 2^{mp.nstr(mp.log(error, 2), 4)}")
        for c in coefficients:
            print(f"  {float(c).hex()},")


def main():
    for counter, key, answer in PUBLISHED:
        assert philox(counter, key) == answer
    if "--coefficients" in sys.argv:
        print_coefficients()
    elif "--check" in sys.argv:
        if OUTPUT.read_text() != table():
            sys.exit(f"{OUTPUT} is not what this script writes")
    else:
        OUTPUT.write_text(table())


if __name__ == "__main__":
    main()
