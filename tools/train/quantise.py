"""Number formats of the checkpoint and of the caches, exact, and straight-through versions of them for training."""

import torch

E4M3_MAX = 448.0
BLOCK = 128

# Cache layouts that training passes keys and values through. For MLA the pair is (latent, rotated key), else (k, v).
LATENT_CACHES = ("none", "fp8", "fp8_block", "fp4")
GROUPED_CACHES = ("none", "fp8")


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Values of e4m3, round to nearest even, saturating, in x's dtype."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)


def fp8_block(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 weights [..., N, K] and float32 scales [..., ceil(N/128), ceil(K/128)] with weight = q * scale.

    Scales are powers of two, so that a decoded weight is exact in bf16.
    """
    rows, cols = weight.shape[-2:]
    up = torch.nn.functional.pad(weight.float(), (0, -cols % BLOCK, 0, -rows % BLOCK))
    tiles = up.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))  # [..., n, 128, k, 128]
    scale = pow2_ceil((tiles.abs().amax((-3, -1)) / E4M3_MAX).clamp_min(1e-12))
    quantised = (tiles / scale[..., :, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    quantised = quantised.flatten(-2).flatten(-3, -2)
    return quantised[..., :rows, :cols], scale


def fp8_block_values(quantised: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 weights from what fp8_block gives."""
    rows, cols = quantised.shape[-2:]
    wide = scale.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return quantised.float() * wide[..., :rows, :cols]


class _Straight(torch.autograd.Function):
    """Forward the second argument, backward the unchanged gradient to the first (straight-through)."""

    @staticmethod
    def forward(ctx, x, value):
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def straight(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return _Straight.apply(x, value.to(x.dtype))


def fake_fp8_block(weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        value = fp8_block_values(*fp8_block(weight.detach()))
    return weight + (value - weight.detach())


def pow2_ceil(x: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is not below x (float32, x > 0 and normal), by its bits, so that it is exact."""
    return ((x.view(torch.int32) + 0x7FFFFF) & -0x800000).view(torch.float32)


def _rows_pow2(x: torch.Tensor, group: int) -> torch.Tensor:
    """e4m3 with one power-of-two scale per `group` of the last dim, amax floored at 1e-4."""
    parts = x.to(torch.float32).unflatten(-1, (-1, group))
    scale = pow2_ceil(parts.abs().amax(-1, keepdim=True).clamp_min(1e-4) / E4M3_MAX)
    return (to_e4m3(parts / scale) * scale).flatten(-2).to(x.dtype)


def _e2m1(x: torch.Tensor) -> torch.Tensor:
    """e2m1 with a power-of-two scale per 16 elements; magnitudes 0 .5 1 1.5 2 3 4 6, ties away from zero."""
    parts = x.float().unflatten(-1, (-1, 16))
    scale = pow2_ceil((parts.abs().amax(-1, keepdim=True) / 6).clamp_min(1e-10))
    size = (parts / scale).abs()
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=x.device)
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=x.device)
    return (values[torch.bucketize(size, bounds, right=True)] * parts.sign() * scale).flatten(-2).to(x.dtype)


def fake_fp8_rows_pow2(x: torch.Tensor) -> torch.Tensor:
    return straight(x, _rows_pow2(x.detach(), x.shape[-1]))


def fake_kv(cache: str, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What attention reads back from `cache` for (latent nope, rope) or (k, v)."""
    if cache == "none":
        return a, b
    if cache == "bf16":
        return tuple(straight(x, x.detach().to(torch.bfloat16).to(x.dtype)) for x in (a, b))
    if cache == "fp8":
        return straight(a, to_e4m3(a.detach())), straight(b, to_e4m3(b.detach()))
    if cache == "fp8_block":
        return straight(a, _rows_pow2(a.detach(), BLOCK)), b
    if cache == "fp4":
        return straight(a, _e2m1(a.detach())), straight(b, _e2m1(b.detach()))
    raise ValueError(f"cache {cache!r} is none of {LATENT_CACHES}")


# DeepSeek V4's formats

MX_BLOCK = 32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def mx_fp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e2m1 codes uint8 [..., N, K] (sign in bit 3) and float32 power-of-two scales [..., N, K / 32] of a weight.

    Ties go to the even code.
    """
    parts = weight.float().unflatten(-1, (-1, MX_BLOCK))
    scale = pow2_ceil((parts.abs().amax(-1, keepdim=True) / 6).clamp_min(1e-12))
    size = (parts / scale).abs().contiguous()
    bounds = torch.tensor(_E2M1_BOUNDS, device=weight.device)
    low, high = torch.bucketize(size, bounds), torch.bucketize(size, bounds, right=True)
    code = torch.where(low % 2 == 0, low, high)
    return (code + 8 * (parts < 0)).to(torch.uint8).flatten(-2), scale[..., 0]


def mx_fp4_values(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 weights from what mx_fp4 gives."""
    table = torch.tensor(_E2M1 + tuple(-v for v in _E2M1), device=codes.device)
    return table[codes.long()] * scale.repeat_interleave(MX_BLOCK, -1)


def fake_mx_fp4(weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        value = mx_fp4_values(*mx_fp4(weight.detach()))
    return weight + (value - weight.detach())


def exponent_bytes(scale: torch.Tensor) -> torch.Tensor:
    """e8m0, as uint8, of float32 powers of two."""
    return ((scale.contiguous().view(torch.int32) >> 23) & 0xFF).to(torch.uint8)


def from_exponent_bytes(exponents: torch.Tensor) -> torch.Tensor:
    return (exponents.to(torch.int32) << 23).view(torch.float32)


def fake_v4_key(cache: str, key: torch.Tensor, rope: int) -> torch.Tensor:
    """What attention reads back from `cache` for keys [..., D] whose last `rope` dims are rotated."""
    if cache == "none":
        return key
    plain = key.detach()
    if cache == "bf16":
        return straight(key, plain.to(torch.bfloat16).to(key.dtype))
    if cache != "v4_fp8":
        raise ValueError(f"cache {cache!r} is none of none, bf16, v4_fp8")
    value = torch.cat((_rows_pow2(plain[..., :-rope], 64), plain[..., -rope:].to(torch.bfloat16).to(key.dtype)), -1)
    return straight(key, value)


def hadamard(dim: int, device=None) -> torch.Tensor:
    """The orthonormal Hadamard matrix in Sylvester's order, float32 [dim, dim]."""
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < dim:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix * dim**-0.5


def fake_index_fp8(x: torch.Tensor) -> torch.Tensor:
    """Rows [..., dim] rotated and rounded to e4m3 with one float32 scale each, as an index cache holds them."""
    rotated = x @ hadamard(x.shape[-1], x.device).to(x.dtype)
    plain = rotated.detach().float()
    scale = plain.abs().amax(-1, keepdim=True).clamp_min(1e-4) / E4M3_MAX
    return straight(rotated, to_e4m3(plain / scale) * scale)
