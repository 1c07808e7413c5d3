"""Causal attention over packed sequences: dense through FlashAttention's packed form, or over a selected set of keys.

Work on separate sequences (selection, masks, the indexer's loss) runs on buckets: sequences of similar length, padded
at the end to the bucket's width. Causality alone hides padding from real tokens.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDTHS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
SCORES_AT_ONCE = 1 << 28  # elements of float32 score tiles held at a time
flash_works = False  # what probe_flash() found


class Bucket:
    """Sequences of at most `width` tokens, and their tokens' positions in the packed row."""

    def __init__(self, width: int, starts: list[int], lengths: list[int], device):
        self.width = width
        self.count = len(starts)
        start = torch.tensor(starts, device=device)[:, None]
        length = torch.tensor(lengths, device=device)[:, None]
        at = torch.arange(width, device=device)[None]
        self.valid = at < length  # bool [count, width]
        self.index = torch.where(self.valid, start + at, start)  # int64 [count, width]
        self.lengths = length[:, 0]  # int64 [count]

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Packed [T, ...] to padded [count, width, ...]; places past a sequence's end repeat its first token."""
        return x.index_select(0, self.index.flatten()).unflatten(0, (self.count, self.width))


class Packing:
    """The positions of sequences in a packed row."""

    def __init__(self, lengths: list[int], device, weights: torch.Tensor | None = None):
        self.lengths = lengths
        self.device = device
        self.weights = weights  # float32 [T], loss weights: the indexer's loss prefers rows that predict answers
        ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        self.starts = ends[:-1].tolist()
        self.longest = max(lengths)
        if torch.device(device).type == "cuda":
            ends = ends.pin_memory()  # a copy from pageable memory would wait for the GPU
        self.bounds = ends.to(device, non_blocking=True)  # int32 [sequences + 1]
        total = sum(lengths)
        starts = torch.repeat_interleave(self.bounds[:-1].long(), self.bounds.diff().long(), output_size=total)
        self.positions = torch.arange(total, device=device) - starts  # int64 [T]
        self._buckets: list[Bucket] | None = None
        self._order: torch.Tensor | None = None

    @property
    def buckets(self) -> list[Bucket]:
        if self._buckets is None:
            groups: dict[int, tuple[list[int], list[int]]] = {}
            for start, length in zip(self.starts, self.lengths):
                width = next(w for w in WIDTHS if w >= length)
                starts, lengths = groups.setdefault(width, ([], []))
                starts.append(start)
                lengths.append(length)
            self._buckets = [Bucket(w, *groups[w], self.device) for w in sorted(groups)]
            # Where each packed token lies among all the buckets' padded rows.
            self._order = torch.empty(len(self.positions), dtype=torch.int64, device=self.device)
            base = 0
            for bucket in self._buckets:
                places = torch.arange(base, base + bucket.index.numel(), device=self.device)
                valid = bucket.valid.flatten()
                self._order[bucket.index.flatten()[valid]] = places[valid]
                base += bucket.index.numel()
        return self._buckets

    def pack(self, padded: list[torch.Tensor]) -> torch.Tensor:
        """One [count, width, ...] tensor per bucket back to a packed [T, ...]."""
        return torch.cat([p.flatten(0, 1) for p in padded]).index_select(0, self._order)


def attend(q, k, v, scale: float, packing: Packing, chosen: list[torch.Tensor | None] | None = None):
    """Causal attention. q [T, H, D], k [T, Hk, D], v [T, Hk, Dv] to [T, H, Dv].

    `chosen` is select()'s result, or None for all keys.
    """
    if chosen is None and flash_works and q.dtype == torch.bfloat16:
        return _flash(q, k, v, scale, packing)
    return _bucketed(q, k, v, scale, packing, chosen)


def _bucketed(q, k, v, scale: float, packing: Packing, chosen):
    repeat = q.shape[1] // k.shape[1]
    if repeat > 1:
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    outs = []
    for i, bucket in enumerate(packing.buckets):
        parts = [bucket.take(t).transpose(1, 2) for t in (q, k, v)]  # [count, H, width, D]
        mask = chosen[i] if chosen else None
        if mask is None:
            out = F.scaled_dot_product_attention(*parts, is_causal=True, scale=scale)
        else:
            # An additive mask that broadcasts over heads; only the memory-efficient kernel takes one on a GPU.
            bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, float("-inf"))
            bias = bias[:, None].expand(-1, q.shape[1], -1, -1)
            with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
                out = F.scaled_dot_product_attention(*parts, attn_mask=bias, scale=scale)
        outs.append(out.transpose(1, 2))
    return packing.pack(outs)


def _flash(q, k, v, scale: float, packing: Packing) -> torch.Tensor:
    """FlashAttention on the packed row. It needs equal head dims, so v is padded with zeros."""
    width = v.shape[-1]
    if width < q.shape[-1]:
        v = F.pad(v, (0, q.shape[-1] - width))
    out = torch.ops.aten._flash_attention_forward(
        q, k, v, packing.bounds, packing.bounds, packing.longest, packing.longest, 0.0, True, False, scale=scale
    )[0]
    return out[..., :width]


def _index_scores(q, k, weights) -> torch.Tensor:
    """q [B, R, H, D], k [B, S, D], weights [B, R, H] to scores [B, R, S] float32."""
    heads = torch.einsum("brhd,bsd->brhs", q, k)
    # A product and a sum rather than a matrix product, which would round to TF32.
    return (F.relu(heads).float() * weights[..., None]).sum(2)


@torch.no_grad()
def select(index, topk: int, packing: Packing) -> list[torch.Tensor | None]:
    """Per bucket a bool mask [count, width, width] of the keys each query reads: its top-k by the indexer's scores.

    None for a bucket whose sequences are all within top-k.
    """
    masks: list[torch.Tensor | None] = []
    for bucket in packing.buckets:
        if bucket.width <= topk:
            masks.append(None)
            continue
        q, k, weights = (bucket.take(t) for t in index)
        width = bucket.width
        keys = torch.arange(width, device=k.device)
        mask = torch.zeros(bucket.count, width, width, dtype=torch.bool, device=k.device)
        step = max(16, SCORES_AT_ONCE // (bucket.count * width * q.shape[2]))
        for first in range(0, width, step):
            rows = slice(first, min(first + step, width))
            seen = keys[None, :] <= keys[rows, None]
            scores = _index_scores(q[:, rows], k, weights[:, rows]).masked_fill(~seen, float("-inf"))
            picks = scores.topk(topk, -1).indices
            mask[:, rows] = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, picks, True) & seen
        masks.append(mask)
    return masks


def index_loss(q, k, scale: float, index, topk: int, rows: int, packing: Packing):
    """KL from the head-averaged attention distribution to softmax(index scores), on `rows` queries of each sequence.

    Half of the rows are drawn from those that predict weighted tokens, half from all. Also gives the share of the
    attention's mass that the top-k of the scores covers, over rows that see more than top-k keys.
    """
    total = q.new_zeros((), dtype=torch.float32)
    mass = q.new_zeros((), dtype=torch.float32)
    drawn = q.new_zeros((), dtype=torch.float32)
    counted = q.new_zeros((), dtype=torch.float32)
    predicts = None
    if packing.weights is not None:
        predicts = torch.cat((packing.weights[1:], packing.weights.new_zeros(1))).clamp_min(1e-6)
    for bucket in packing.buckets:
        if bucket.width <= 64:
            continue
        count, width = bucket.count, bucket.width
        some = min(rows, width)
        even = bucket.valid.float()
        last = torch.multinomial(even, some // 2, replacement=True)
        first = last
        if predicts is not None:
            first = torch.multinomial(bucket.take(predicts) * even + 1e-9 * even, some // 2, replacement=True)
        picked = torch.cat((first, last), 1)  # [count, R]
        batch = torch.arange(count, device=q.device)[:, None]
        flat = bucket.index[batch, picked].flatten()

        def rows_of(x):
            return x.index_select(0, flat).unflatten(0, picked.shape)

        seen = torch.arange(width, device=q.device) <= picked[..., None]  # [count, R, width]
        with torch.no_grad():
            keys = bucket.take(k)
            logits = torch.einsum("brhd,bshd->bhrs", rows_of(q), keys).float() * scale
            target = logits.masked_fill_(~seen[:, None], float("-inf")).softmax(-1).mean(1)
            del logits
        scores = _index_scores(rows_of(index[0]), bucket.take(index[1]), rows_of(index[2]))
        scores = scores.masked_fill(~seen, float("-inf"))
        log_guess = scores.log_softmax(-1).masked_fill(~seen, 0.0)
        kl = (target * (target.clamp_min(1e-10).log() - log_guess)).sum(-1)  # [count, R]
        total = total + kl.sum()
        drawn = drawn + kl.numel()
        with torch.no_grad():
            far = (picked >= topk).float()
            if width > topk:
                covered = target.gather(-1, scores.topk(topk, -1).indices).sum(-1)
                mass += (covered * far).sum()
                counted += far.sum()
    return total / drawn.clamp_min(1), mass / counted.clamp_min(1)


def probe_flash(device) -> bool:
    """Whether FlashAttention's packed form runs here, forward and backward; if not, buckets serve dense attention."""
    global flash_works
    try:
        q, k = (torch.randn(96, h, 128, device=device, dtype=torch.bfloat16, requires_grad=True) for h in (4, 1))
        packing = Packing([32, 64], device)
        _flash(q, k, k, 0.1, packing).sum().backward()
        bucketed = _bucketed(q, k, k, 0.1, packing, None)
        flash_works = bool((_flash(q, k, k, 0.1, packing) - bucketed).abs().max() < 0.05) and k.grad is not None
    except (RuntimeError, NotImplementedError) as error:
        print(f"FlashAttention's packed form is not available: {error}")
        flash_works = False
    return flash_works
